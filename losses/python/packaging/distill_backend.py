"""This back end is scikit-build-core's. The name of a wheel depends on its settings (`pip wheel -C ...`).

scikit-build-core shows them to CMake and not to the provider of the version, distill_version.py.
"""

import distill_version
from scikit_build_core import build
from scikit_build_core.build import *  # noqa: F403 (the hooks that are not replaced here)


def _with_settings(config_settings):
    distill_version.config_settings = dict(config_settings or {})
    return config_settings


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    return build.build_wheel(wheel_directory, _with_settings(config_settings), metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    return build.build_editable(wheel_directory, _with_settings(config_settings), metadata_directory)


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    return build.prepare_metadata_for_build_wheel(metadata_directory, _with_settings(config_settings))


def prepare_metadata_for_build_editable(metadata_directory, config_settings=None):
    return build.prepare_metadata_for_build_editable(metadata_directory, _with_settings(config_settings))
