"""Where a peer's test asks for something else than distill-losses promises; docs/python_package.md has the same list.

Each test that matches is expected to fail. If it passes, the difference is gone, and the run says so.
"""

import re
from typing import NamedTuple


class Difference(NamedTuple):
    """`pattern` is searched in the test's id, for instance test_jsd.py::test_correctness[dtype0-...].

    `run` is false where the failure would end the process (an assertion on the device) or waits for a kernel of the
    peer's that is not replaced. With `exact_reference` the test is to pass, compared with its reference in fp64.
    """

    pattern: str
    reason: str
    run: bool = True
    exact_reference: bool = False


CLASS_WEIGHTS = (
    "class weights together with label smoothing and z-loss: LinearCrossEntropy refuses them (CrossEntropy has them)"
)
LIGER = [
    Difference(
        r"test_fused_linear_cross_entropy.py::test_correctness(_with_forward_only)?\[True-0\.1-42",
        CLASS_WEIGHTS,
    ),
    Difference(
        r"test_fused_linear_cross_entropy.py::test_correctness_functional\[\w+-True",
        CLASS_WEIGHTS,
    ),
    Difference(
        r"test_fused_linear_cross_entropy.py::test_correctness_with_predicted_tokens",
        "LinearCrossEntropy returns no predicted tokens: its kernel compares arg max with the label, and keeps neither",
    ),
    Difference(
        r"test_cross_entropy.py::test_correctness_with_out_of_bounds_target_once",
        "a label out of range is a RuntimeError on the CPU and a device-side assertion on CUDA, not an AssertionError "
        "before the kernel, which would make the host wait for the device",
        run=False,
    ),
    Difference(
        r"test_cross_entropy.py::test_correctness.*-(sum|none)",
        "PyTorch's cross-entropy rounds log-probabilities to the inputs' dtype before its backward pass, which with "
        "these reductions is more than the tolerance of 5e-2 (bf16) or 1e-6 (fp32)",
        exact_reference=True,
    ),
    Difference(
        r"test_cross_entropy.py::test_float32_internal",
        "calls Liger's Triton kernel itself; there is nothing of ours in it",
        run=False,
    ),
    Difference(
        r"test_jsd_loss.py::test_jsd_hard_loss_computed_only_when_used\[.*-True\]",
        "counts the calls of torch's nll_loss that Liger's own implementation makes; ours makes none",
    ),
]

CCE: list[Difference] = []


def explained(differences, test_id):
    """The first difference that `test_id` falls under, or None."""
    return next((d for d in differences if re.search(d.pattern, test_id)), None)
