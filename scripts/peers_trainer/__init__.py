"""The parts of scripts/bench_trainer_peer.py."""
