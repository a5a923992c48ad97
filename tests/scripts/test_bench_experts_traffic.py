"""scripts/benches/bench_experts_traffic.py on two CPU ranks."""

import json
import os
import subprocess
import sys

import bench_experts_traffic


def test_reports_the_gather_and_every_number_of_tokens(tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    sizes = ["--experts=8", "--hidden=64", "--ffn=32", "--tokens=64,100", "--per-token=3", "--repetitions=2"]
    command = [*torchrun, bench_experts_traffic.__file__, *sizes, f"--json={tmp_path / 'traffic.json'}"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "traffic.json").read_text())
    assert report["ranks"] == 2 and report["layer_bytes"] == 2 * 8 * 3 * 64 * 32 and report["gather_s"] > 0
    assert [row["tokens"] for row in report["moved"]] == [64, 100] and all(
        row["seconds"] > 0 for row in report["moved"]
    )
    assert len(done.stdout.splitlines()) == 3  # of the first rank alone
