"""The back end of distill-losses: one in the tree must be in a folder of its own project."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "losses" / "python" / "packaging"))

from distill_backend import *  # noqa: E402, F403
