"""The parts of scripts/checks/kill_test.py. They train the tiny models of tests/training."""

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[3] / "tests"
sys.path += [str(TESTS / "training"), str(TESTS)]
