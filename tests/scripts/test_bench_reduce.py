"""scripts/benches/bench_reduce.py on two CPU ranks: the collective alone, since copies need GPUs."""

import json
import os
import subprocess
import sys

import bench_reduce


def test_reports_what_a_reduction_costs_alone_and_beside_products(tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    sizes = ["--elements=100000", "--rounds=2", "--reductions=2", f"--json={tmp_path / 'reduce.json'}"]
    command = [*torchrun, bench_reduce.__file__, *sizes]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "reduce.json").read_text())
    assert report["ranks"] == 2 and report["elements"] == 100000
    assert list(report["seconds"]) == ["nccl"] and report["seconds"]["nccl"][0] > 0
    assert "alone" in done.stdout and len(done.stdout.splitlines()) == 2  # of the first rank alone
