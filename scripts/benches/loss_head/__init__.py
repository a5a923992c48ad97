"""The parts of scripts/benches/bench_loss_head.py and accuracy_loss_head.py."""
