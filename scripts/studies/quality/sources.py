"""The packages that the text comes from: their table in sources.yaml, and their files, downloaded."""

import hashlib
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from shared.command_line import fail

TABLE = Path(__file__).parent / "sources.yaml"
KINDS = ("code", "reference", "prose")


@dataclass(frozen=True)
class Source:
    """A package, and the files of it that are documents of one kind."""

    kind: str
    package: str
    is_wheel: bool
    version: str
    sha256: str
    license: str
    include: tuple
    exclude: tuple = field(default=())

    @property
    def name(self):
        return f"{self.kind}-{self.package}"

    def takes(self, path):
        """Whether the file at `path` in the package is a document of this source."""
        return _matches(path, self.include) and not _matches(path, self.exclude)


@dataclass(frozen=True)
class Archive:
    """The downloaded file of a package."""

    file: Path
    version: str
    sha256: str


def _matches(path, patterns):
    return any(re.match(_expression(pattern), path) for pattern in patterns)


def _expression(pattern):
    """Of a pattern in which * stands for anything but /, and ** for anything; **/ also for nothing."""
    parts = re.split(r"(\*\*/|\*\*|\*)", pattern)
    known = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*"}
    return "".join(known.get(part) or re.escape(part) for part in parts) + r"\Z"


def read_sources(table=TABLE):
    """Every source of the table. A mistake in it is a ValueError that names the entry."""
    sources = []
    for kind, entries in yaml.safe_load(Path(table).read_text()).items():
        if kind not in KINDS:
            raise ValueError(f"{table}: expected one of {', '.join(KINDS)}, found {kind}")
        for entry in entries:
            sources.append(_source(table, kind, dict(entry)))
    return sources


def _source(table, kind, entry):
    packages = {key: entry.pop(key) for key in ("deb", "wheel") if key in entry}
    if len(packages) != 1:
        raise ValueError(f"{table}: {kind}: expected one of deb and wheel in an entry, found {sorted(packages)}")
    ((package_kind, package),) = packages.items()
    needed, allowed = {"version", "sha256", "license", "include"}, {"exclude"}
    if not needed <= set(entry) <= needed | allowed:
        raise ValueError(f"{table}: {package}: expected keys {sorted(needed | allowed)}, found {sorted(entry)}")
    lists = {key: tuple(entry.pop(key, ())) for key in ("include", "exclude")}
    return Source(kind=kind, package=package, is_wheel=package_kind == "wheel", **entry, **lists)


def sha256(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def download(source, folder):
    """The package's Archive in `folder`, which is used again where it is intact."""
    folder.mkdir(parents=True, exist_ok=True)
    found = _present(source, folder)
    if found is None:
        (_download_wheel if source.is_wheel else _download_deb)(source, folder)
        found = _present(source, folder)
    if found is None:
        fail(f"{source.package}: expected a file {_pattern(source, '*')} in {folder} after the download")
    return found


def _pattern(source, version):
    if source.is_wheel:
        return f"{re.sub(r'[-_.]+', '_', source.package).lower()}-{version}-*.whl"
    return f"{source.package}_{version.replace(':', '%3a')}_*.deb"


def _present(source, folder):
    """The pinned file, else a Debian package of another version that was downloaded because the pinned one has gone."""
    files = sorted(folder.glob(_pattern(source, source.version)))
    if files:
        found = sha256(files[0])
        if found == source.sha256:
            return Archive(files[0], source.version, found)
        files[0].unlink()
        fail(f"{files[0]}: expected SHA-256 {source.sha256}, found {found}; removed it, run again")
    if source.is_wheel:
        return None
    for file in sorted(folder.glob(_pattern(source, "*"))):
        version = file.name.split("_")[1].replace("%3a", ":")
        return Archive(file, version, sha256(file))
    return None


def _download_wheel(source, folder):
    requirement = f"{source.package}=={source.version}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--platform", "any", "--python-version", "3.11", "--dest", str(folder)]
    if subprocess.run([*command, requirement]).returncode != 0:
        fail(f"pip could not download {requirement}; put {_pattern(source, source.version)} into {folder} by hand")


def _download_deb(source, folder):
    for wanted in (f"{source.package}={source.version}", source.package):
        done = subprocess.run(["apt-get", "-q", "download", wanted], cwd=folder, capture_output=True, text=True)
        if done.returncode == 0:
            if wanted == source.package:
                print(f"{source.package}: version {source.version} is no longer there; another one is taken")
            return
    fail(f"apt-get could not download {source.package} (`apt-get update` first?):\n{done.stderr.strip()}")
