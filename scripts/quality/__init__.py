"""The parts of scripts/quality.py."""
