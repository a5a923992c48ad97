"""The loss heads of other libraries behind the interface of heads.py, where Python can import them.

Every one starts from hidden states and lm_head weights, and is called with its library's defaults unless its name says
otherwise.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata

import torch

from loss_head.heads import DIVERGENCES, Head, of_autograd
from loss_head.report import first_line


def trl():
    """The exact divergence of TRL's DistillationTrainer: fp32 logits of tiles of 4096 tokens and 32768 columns, which
    are computed once more for a JSD, and once more in the backward pass."""
    from trl.kernels.chunked_divergence import ChunkedDivergenceFunction

    def loss_of(problem, hidden, weight):
        softcap = problem.softcap or None
        rows, _ = ChunkedDivergenceFunction.apply(
            hidden,
            weight,
            None,
            problem.teacher_hidden,
            problem.teacher_weight,
            None,
            float(problem.beta),
            1.0,
            1.0,
            softcap,
            1.0,
            softcap,
        )
        return rows.mean()

    return of_autograd(loss_of)


def liger_chunked(chunk, compiled):
    from liger_kernel.chunked_loss.jsd_loss import LigerFusedLinearJSDLoss

    if compiled:
        # Each problem is compiled for its own sizes: dynamo would leave a function uncompiled after a few of them.
        torch._dynamo.reset()
        torch._dynamo.config.automatic_dynamic_shapes = False
    modules = {}

    def loss_of(problem, hidden, weight):
        module = modules.setdefault(
            problem.beta,
            LigerFusedLinearJSDLoss(
                weight_hard_loss=0.0, weight_soft_loss=1.0, beta=problem.beta, compiled=compiled, chunk_size=chunk
            ),
        )
        return module(hidden, weight, problem.teacher_hidden, problem.teacher_weight, problem.targets)

    return of_autograd(loss_of)


def liger_jsd(accumulation):
    from liger_kernel.ops.fused_linear_jsd import LigerFusedLinearJSDFunction

    return of_autograd(
        lambda problem, hidden, weight: LigerFusedLinearJSDFunction.apply(
            hidden, weight, problem.teacher_hidden, problem.teacher_weight, None, problem.beta, -100, 1.0, accumulation
        )
    )


def liger_cross_entropy(accumulation):
    from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction

    def loss_of(problem, hidden, weight):
        softcap = problem.softcap or None
        result = LigerFusedLinearCrossEntropyFunction.apply(
            hidden, weight, problem.targets, None, None, -100, 0.0, 0.0, "mean", softcap, False, accumulation
        )
        return result[0] if isinstance(result, tuple) else result

    return of_autograd(loss_of)


def cut_cross_entropy(implementation):
    from cut_cross_entropy import linear_cross_entropy

    return of_autograd(
        lambda problem, hidden, weight: linear_cross_entropy(
            hidden, weight, problem.targets, softcap=problem.softcap or None, impl=implementation
        )
    )


def quack():
    from quack.linear_cross_entropy import chunked_linear_cross_entropy

    return of_autograd(lambda problem, hidden, weight: chunked_linear_cross_entropy(hidden, weight, problem.targets))


def torch_cross_entropy():
    """PyTorch's own, which is in chunks with options, and on whole logits without."""
    missing = [
        name
        for module, name in ((torch.nn.functional, "linear_cross_entropy"), (torch.nn, "LinearCrossEntropyOptions"))
        if not hasattr(module, name)
    ]
    if missing:
        raise ImportError(f"torch {torch.__version__} has no {' and no '.join(missing)}")
    options = torch.nn.LinearCrossEntropyOptions()
    return of_autograd(
        lambda problem, hidden, weight: torch.nn.functional.linear_cross_entropy(
            hidden, weight, problem.targets, options=options
        )
    )


@dataclass(frozen=True)
class Peer:
    name: str
    kinds: tuple  # of the problems it can do
    make: Callable[[], Callable]  # returns Head.run, and raises where it cannot be imported
    needs_gpu: bool = True
    softcaps: bool = False  # whether it takes a softcap
    compiled: bool | None = None  # of two forms of one head, whether this is the one for torch.compile
    in_table: bool = True  # whether --what table has it; the others are variants that take long


CE = ("ce",)
PEERS = [
    Peer("TRL chunked divergence", DIVERGENCES, trl, needs_gpu=False, softcaps=True),
    Peer("Liger chunked_loss compiled, chunk 1024", DIVERGENCES, lambda: liger_chunked(1024, True), compiled=True),
    Peer(
        "Liger chunked_loss compiled, chunk 4096",
        DIVERGENCES,
        lambda: liger_chunked(4096, True),
        compiled=True,
        in_table=False,
    ),
    Peer("Liger chunked_loss", DIVERGENCES, lambda: liger_chunked(1024, False), needs_gpu=False, compiled=False),
    Peer("Liger fused_linear_jsd", DIVERGENCES, lambda: liger_jsd(None)),
    Peer("Liger fused_linear_jsd, fp32 accumulation", DIVERGENCES, lambda: liger_jsd(torch.float32)),
    Peer("Liger FLCE", CE, lambda: liger_cross_entropy(None), softcaps=True),
    Peer("Liger FLCE, fp32 accumulation", CE, lambda: liger_cross_entropy(torch.float32), softcaps=True),
    Peer("cut-cross-entropy", CE, lambda: cut_cross_entropy("cce"), softcaps=True),
    Peer(
        "cut-cross-entropy, Kahan full",
        CE,
        lambda: cut_cross_entropy("cce_kahan_full_c"),
        softcaps=True,
        in_table=False,
    ),
    Peer("QuACK chunked_linear_cross_entropy", CE, quack),
    Peer("torch linear_cross_entropy", CE, torch_cross_entropy, needs_gpu=False),
]
# What decides the figures of the peers.
PACKAGES = ["torch", "triton", "trl", "transformers", "liger-kernel", "cut-cross-entropy"]
PACKAGES += ["quack-kernels", "nvidia-cutlass-dsl"]


def versions():
    """{package: version} of the PACKAGES that are installed."""
    found = {}
    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found | {"torch": torch.__version__}


def importable_peers(kind, on_gpu, compiled=True, softcap=0.0, only=None):
    """The heads that can do such a problem on this machine, and {name: reason} of those that cannot.

    `compiled`: which of two forms of one head. `only`: names to choose from.
    """
    found, left_out = [], {}
    for peer in PEERS:
        other_form = on_gpu and peer.compiled is not None and peer.compiled != compiled
        if kind not in peer.kinds or other_form or (only is not None and peer.name not in only):
            continue
        if peer.needs_gpu and not on_gpu:
            left_out[peer.name] = "needs a GPU"
            continue
        try:
            run = peer.make()
        except Exception as error:  # not installed, or not for this machine
            left_out[peer.name] = first_line(error)
            continue
        if softcap and not peer.softcaps:
            left_out[peer.name] = "takes no softcap"
        else:
            found.append(Head(peer.name, peer.kinds, run))
    for name, why in left_out.items():
        print(f"  {name}: left out, {why}", flush=True)
    return found, left_out
