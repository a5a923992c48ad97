"""The parts of scripts/studies/quality.py."""
