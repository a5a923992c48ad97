"""Where the program under test is."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def distill_program():
    named = os.environ.get("DISTILL_BIN")
    build = Path(os.environ.get("DISTILL_BUILD", ROOT / "build" / "release"))
    return Path(named) if named else build / "apps" / "distill" / "distill"
