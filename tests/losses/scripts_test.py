"""The scripts that load the operators: the accuracy study, the exact losses it trusts."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

BENCHES = Path(__file__).resolve().parents[2] / "scripts" / "benches"
LIBRARY = os.path.abspath(os.environ.get("DISTILL_LOSSES_LIBRARY", "build/release/losses/libdistill_losses.so"))
# Some CPUs announce instructions for bf16 products that they do not have.
ENVIRONMENT = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}


def run(name, *arguments, code=0):
    done = subprocess.run(
        [sys.executable, BENCHES / name, *map(str, arguments)], capture_output=True, text=True, env=ENVIRONMENT
    )
    assert done.returncode == code, (
        f"{name}: expected exit code {code}, found {done.returncode}\n{done.stdout}{done.stderr}"
    )
    return done.stderr if code else done.stdout


def test_the_accuracy_study_finds_what_rounding_costs(tmp_path):
    run(
        "accuracy_loss_head.py",
        "--library",
        LIBRARY,
        "--device",
        "cpu",
        "--tokens",
        "32",
        "--vocab",
        "700",
        "--hidden",
        "64",
        "--gaps",
        "1,0.01",
        "--out",
        tmp_path / "result",
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["result.json", "result.png"]
    rows = json.loads((tmp_path / "result.json").read_text())["rows"]
    found = {(row["kind"], row["gap"], row["name"]): row for row in rows}
    for gap in (1.0, 0.01):
        ours = found["jsd", gap, "distill"]
        assert ours["reached"] == pytest.approx(gap, rel=0.1)
        assert ours["loss"] < 1e-4 and ours["d_hidden"] < 5e-3 and ours["d_weight"] < 5e-3
        assert ours["smallest_token_loss"] >= 0
        assert found["ce", gap, "distill"]["d_weight"] < 5e-3
    # The study can tell: bf16 logits are wrong by tens of per cent close to the teacher.
    assert found["jsd", 0.01, "plain, bf16 logits"]["d_weight"] > 0.05


@pytest.fixture
def loss_head(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHES))
    from loss_head import exact, heads, problem

    return exact, heads, problem


@pytest.mark.parametrize("beta", [0, 0.3, 1])
@pytest.mark.parametrize("teacher_hidden", [0, 24])
def test_the_exact_losses_are_those_of_autograd(loss_head, beta, teacher_hidden):
    exact, heads, problem = loss_head
    case = problem.random_problem(70, 31, 16, teacher_hidden, "cpu", torch.float64, beta=beta)
    expected = exact.exact(case)
    # The plain computation is written apart, and differentiated by autograd, in fp32.
    found = exact.errors(heads.plain(torch.float32)(case), expected)
    assert max(found.values()) < 1e-5


def test_the_table_with_the_peers_has_every_pair_and_who_is_missing(tmp_path):
    options = "--what table,parts --rehearse --reps 1 --cap 1024 --products 1024"
    peers = "--only=TRL chunked divergence;cut-cross-entropy;torch linear_cross_entropy"
    run("bench_loss_head.py", "--library", LIBRARY, *options.split(), peers, "--out", tmp_path / "result")
    page, rows = (tmp_path / "result.md").read_text(), json.loads((tmp_path / "result.json").read_text())
    assert page.count("| distill, cap 1024 MiB |") == 18 and page.count("| TRL chunked divergence |") == 12
    assert "- cut-cross-entropy: not measured, needs a GPU\n" in page
    assert "- torch linear_cross_entropy: not measured, ImportError: torch 2." in page
    wrong = [row["errors"] for row in rows["table"] if row["name"].startswith("distill")]
    assert len(wrong) == 36 and all(found["loss"] < 1e-4 and found["d_weight"] < 2e-2 for found in wrong)
    assert [row["all"]["parts"] for row in rows["parts"]] == [{}] * 7  # a trace needs a GPU
    assert (tmp_path / "result-parts.md").read_text().count("| Gemma 3 1B <- 4B: V ") == 2


def test_the_benchmark_needs_a_gpu_and_says_so():
    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert "needs a GPU" in run("bench_loss_head.py", "--library", LIBRARY, code=1)
    assert "--shapes: expected kind:Hs:Ht" in run("bench_loss_head.py", "--shapes", "jsd:16", code=2)


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, "-q"]))
