"""The parts of scripts/studies/conformance.py."""
