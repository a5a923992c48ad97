"""The parts of scripts/benches/bench_trainer_peer.py."""
