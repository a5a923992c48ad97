"""The parts of scripts/benches/bench_pairs.py."""
