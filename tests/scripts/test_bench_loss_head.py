"""scripts/benches/loss_head: the peers that run on a CPU against fp64, the cases, the tables, the parts of a trace."""

import pytest
import torch

from loss_head import head_report, parts, peer_heads, shapes
from loss_head.exact import errors, exact
from loss_head.head_times import problem_of
from loss_head.heads import DIVERGENCES
from loss_head.parts import Kernel
from loss_head.problem import random_problem


def peers_on_a_cpu():
    return [peer for peer in peer_heads.PEERS if not peer.needs_gpu and peer.name != "torch linear_cross_entropy"]


@pytest.mark.parametrize("peer", peers_on_a_cpu(), ids=lambda peer: peer.name)
@pytest.mark.parametrize("beta", [0, 0.3, 0.5, 1])
@pytest.mark.parametrize("softcap", [0.0, 5.0])
def test_peers_compute_the_same_loss_in_fp32(peer, beta, softcap):
    pytest.importorskip("trl" if peer.name.startswith("TRL") else "liger_kernel")
    if softcap and not peer.softcaps:
        found, left_out = peer_heads.importable_peers("jsd", False, softcap=softcap, only=[peer.name])
        assert (found, left_out) == ([], {peer.name: "takes no softcap"})
        return
    # More tokens than a tile of TRL's would need 4096; two of its tiles of columns need more than 32768.
    vocab = 33000 if peer.name.startswith("TRL") else 500
    scale = 3.0  # logits for which a softcap of 5 counts
    problem = random_problem(24, vocab, 16, 24, "cpu", torch.float32, logit_scale=scale, softcap=softcap, beta=beta)
    found = errors(peer.make()(problem), exact(problem))
    assert max(found.values()) < 2e-5, found


def test_a_problem_is_named_by_its_loss():
    kinds = {beta: random_problem(2, 8, 8, 8, "cpu", beta=beta).kind for beta in (0, 0.1, 1)}
    assert kinds == {0: "forward_kl", 0.1: "jsd", 1: "reverse_kl"}
    assert random_problem(2, 8, 8, 0, "cpu").kind == "ce"


def test_a_peer_that_is_missing_is_named_with_the_reason(monkeypatch, capsys):
    def no_such_package():
        raise ImportError("No module named 'quack'")

    peers = [peer_heads.Peer("QuACK", ("ce",), no_such_package), peer_heads.Peer("other", ("jsd",), no_such_package)]
    monkeypatch.setattr(peer_heads, "PEERS", peers)
    assert peer_heads.importable_peers("ce", on_gpu=True) == ([], {"QuACK": "ImportError: No module named 'quack'"})
    assert "QuACK: left out, ImportError: No module named 'quack'" in capsys.readouterr().out
    assert peer_heads.importable_peers("ce", on_gpu=False) == ([], {"QuACK": "needs a GPU"})


@pytest.mark.skipif(hasattr(torch.nn.functional, "linear_cross_entropy"), reason="this torch has it")
def test_torch_without_a_head_of_its_own_says_so():
    with pytest.raises(ImportError, match=f"torch {torch.__version__[:4]}.* has no linear_cross_entropy"):
        peer_heads.torch_cross_entropy()


def test_torchs_own_head_is_called_with_chunks(monkeypatch):
    def stand_in(hidden, weight, target, *, options):
        assert options == "chunks"
        return torch.nn.functional.cross_entropy(hidden @ weight.t(), target)

    monkeypatch.setattr(torch.nn.functional, "linear_cross_entropy", stand_in, raising=False)
    monkeypatch.setattr(torch.nn, "LinearCrossEntropyOptions", lambda: "chunks", raising=False)
    problem = random_problem(24, 50, 16, 0, "cpu", torch.float32)
    assert max(errors(peer_heads.torch_cross_entropy()(problem), exact(problem)).values()) < 1e-5


def test_one_form_of_each_compiled_head_is_timed():
    def names(compiled):
        return [peer.name for peer in peer_heads.PEERS if peer.compiled == compiled]

    assert names(True) == [f"Liger chunked_loss compiled, chunk {chunk}" for chunk in (1024, 4096)]
    assert names(False) == ["Liger chunked_loss"]
    in_table = {peer.name.split()[0] for peer in peer_heads.PEERS if peer.in_table}
    assert in_table == {"TRL", "Liger", "cut-cross-entropy", "QuACK", "torch"}


def test_the_table_has_three_losses_of_six_pairs():
    cases = shapes.table_cases()
    assert [case.kind for case in cases] == ["jsd"] * 6 + ["ce"] * 6 + ["forward_kl"] * 6
    assert cases[0] == shapes.Case("jsd", 4096, 4096, 128256, 0, 16384, "Llama 3.1 8B <- 8B")
    assert {(case.vocab, case.hidden) for case in cases} == {
        (128256, 4096),
        (151936, 2560),
        (262144, 1152),
        (151936, 1024),
        (256000, 2304),
        (49152, 576),
    }
    assert {case.softcap for case in cases if case.vocab == 256000} == {30}
    assert all((case.teacher_hidden == 0) == (case.kind == "ce") for case in cases)


def test_the_parts_are_of_small_students_and_have_bars():
    cases = shapes.parts_cases()
    assert {1024, 1152, 2048, 2560} <= {case.hidden for case in cases if case.kind == "jsd"}
    bars = {case.models: parts.bar_of(case._asdict()) for case in cases}
    assert bars["Qwen3 0.6B <- 4B"] == 1.25 and bars["Gemma 2 2B <- 9B"] == 1.30
    assert parts.bar_of(shapes.TABLE[0].case("jsd")._asdict()) is None  # of a hidden size of 4096


@pytest.mark.parametrize("case", shapes.table_cases() + shapes.parts_cases(), ids=str)
def test_the_cases_of_a_rehearsal_can_be_computed(case):
    small = case.smaller()
    problem = problem_of(small)
    assert problem.kind == case.kind and problem.hidden.numel() < 2**17
    assert min(small.tokens, small.vocab, small.hidden) > 0


@pytest.mark.parametrize(
    "text, message",
    [
        ("jsd:16", "expected kind:Hs:Ht"),
        ("kl:16:16", "expected kind:Hs:Ht.* with one of the kinds jsd, forward_kl, ce, found kl:16:16"),
        ("jsd:16:0", "Ht is 0 for ce, which has no teacher, and only there; found jsd:16:0"),
        ("ce:16:16", "Ht is 0 for ce"),
    ],
)
def test_wrong_shapes_are_refused(text, message):
    with pytest.raises(ValueError, match=message):
        shapes.cases_of(text)


def test_shapes_of_the_command_line():
    assert shapes.cases_of("forward_kl:16:24:50:30,ce:16:0") == [
        shapes.Case("forward_kl", 16, 24, 50, 30),
        shapes.Case("ce", 16, 0),
    ]
    assert len(shapes.cases_of("models")) == 2 * len(shapes.MODELS)
    assert {case.kind for case in shapes.cases_of("models")} < {*DIVERGENCES, "ce"}


def row(name, ms, **more):
    of_case = {"kind": "jsd", "n": 8, "v": 64, "h": 16, "ht": 24, "softcap": 0, "models": "A <- B", "name": name}
    errors = {"loss": 1e-6, "d_hidden": 2e-3, "d_weight": 3e-3}
    return of_case | {"ms": ms, "ratio": ms / 10, "extra_peak_mib": 1003.4, "errors": errors} | more


def left_out(name, why, **more):
    of_case = row(name, 0.0, **more)
    return {key: of_case[key] for key in ("kind", "n", "v", "h", "ht", "softcap", "models", "name")} | {"left_out": why}


def test_the_page_has_a_section_for_each_case_and_names_what_is_missing():
    products = {"extra_peak_mib": None, "errors": None}
    report = {
        "device": "GPU",
        "versions": {"torch": "2.11.0", "trl": "1.16.0"},
        "arguments": {"reps": 3, "error_tokens": 0},
        "not_begun": ["- not begun within 9 s: C <- D"],
        "table": [
            row("products alone, chunk 1024", 12.0, **products),
            row("products alone, chunk 4096", 10.0, **products),
            row("distill, cap 1024 MiB", 11.0),
            row("distill, cap 1024 MiB, all metrics", 11.5),
            row("TRL chunked divergence", 21.0, errors=None),
            left_out("QuACK", "takes no softcap"),
            left_out("Liger", "needs a GPU"),
            row("products alone, chunk 4096", 5.0, kind="ce", ht=0, **products),
            row("QuACK", 6.0, kind="ce", ht=0),
        ],
    }
    assert head_report.peers_table(report) == (
        """GPU, 3 repetitions. torch 2.11.0, trl 1.16.0.

In brackets: with all metrics. Errors are relative, against fp64 on the same bf16 inputs.

| | ms | times the products | scratch, MiB | error of the loss | of d_hidden | of d_weight |
| --- | --- | --- | --- | --- | --- | --- |
| **A <- B: jsd, N 8, V 64, H 16, G 24**; products | 10.0 | 1 | | | | |
| distill, cap 1024 MiB | 11.0 (11.5) | 1.100 (1.150) | 1003 | 1.0e-06 | 2.0e-03 | 3.0e-03 |
| TRL chunked divergence | 21.0 | 2.100 | 1003 |  |  |  |
| **A <- B: ce, N 8, V 64, H 16**; products | 5.0 | 1 | | | | |
| QuACK | 6.0 | 0.600 | 1003 | 1.0e-06 | 2.0e-03 | 3.0e-03 |

- QuACK: not measured, takes no softcap (A <- B, jsd)
- Liger: not measured, needs a GPU
- not begun within 9 s: C <- D
"""
    )


def trace(*names):
    """Kernels of 1, 2, 3... milliseconds, with 0.5 ms between them."""
    kernels, begin = [], 0.0
    for ms, name in enumerate(names, 1):
        kernels.append(Kernel(name, begin, float(ms)))
        begin += ms + 0.5
    return kernels


ROWS = "void distill::losses::cluster::rows_cluster<4, float, true>(RowArgs)"
STREAMING = "void distill::losses::streaming::rows<float, true>(RowArgs)"


def test_a_trace_is_divided_into_the_parts_of_the_head():
    kernels = trace(
        *("elementwise", "nvjet_hsh_1", "nvjet_hsh_2", ROWS, "sm90_xmma_gemm_3", "cublasLt::splitKreduce_kernel"),
        *("nvjet_hsh_4", STREAMING, "nvjet_hsh_5", "nvjet_hsh_6", "nvjet_hsh_7", "nvjet_hsh_8", ROWS),
        *("nvjet_hsh_9", "nvjet_hsh_10"),
    )
    assert parts.parts_of(kernels, sides=2) == {
        "logits": 2 + 3 + (5 + 6) + 7 + 11 + 12,
        "gradients": 9 + 10 + 14 + 15,
        "rows": 4 + 8 + 13,
        "other": 1,
        "idle": pytest.approx(14 * 0.5),
        "chunks": 3,
        "groups": 2,
    }


def test_kernels_in_another_order_are_an_error():
    with pytest.raises(ValueError, match="expected 1 or 3 products before a row kernel, found 2"):
        parts.parts_of(trace("gemm", "gemm", ROWS, "gemm", "gemm"), sides=1)
    with pytest.raises(ValueError, match="expected 2 products after the last row kernel, found 1"):
        parts.parts_of(trace("gemm", ROWS, "gemm"), sides=1)


def test_kernels_by_name_are_counted():
    assert parts.by_name(trace("a", "b", "a", "b")) == {"b": (2, 6.0), "a": (2, 4.0)}


def test_the_parts_table_shows_chunks_and_bars():
    form = {"ms": 15.0, "ratio": 1.5, "kernels": {}}
    times = {"logits": 6.0, "gradients": 5.0, "rows": 3.0, "other": 0.5, "idle": 0.25, "chunks": 16, "groups": 4}
    alone = {name: {"ms": ms, "chunk": 4096} for name, ms in [("all", 10), ("logits", 5), ("fp32 logits", 5.5)]}
    result = {
        **shapes.SMALL[5].case("jsd")._asdict(),
        "alone": alone | {"gradients": {"ms": 4.5, "chunk": 2048}},
        "loss": form | {"parts": times},
        "all": form | {"parts": {}},
    }
    assert parts.parts_table([result]).splitlines()[2:] == [
        "| Gemma 2 2B <- 9B: V 256000, H 2304 / 3584, softcap 30 | loss | 15.00 | 1.500 (1.30) | 10.00 | "
        "16 of 512: 6.00 | 5.00, 5.50 | 4 of 2048: 5.00 | 4.50 | 3.00 | 0.50, 0.25 |",
        "| Gemma 2 2B <- 9B: V 256000, H 2304 / 3584, softcap 30 | all | 15.00 | 1.500 (1.30) | 10.00 | "
        " | 5.00, 5.50 |  | 4.50 |  |  |",
    ]
    text = "\n".join(parts.lines_of(result))
    assert "logits products 6.00 ms in 16 chunks of 512 tokens; alone 5.00 (bf16, chunk 4096), 5.50 (fp32" in text
