"""Distillation losses that never hold the logits: JSD, KL and cross-entropy from hidden states and lm_heads.

    from distill_losses import LinearJSD
    loss = LinearJSD(beta=0.5)(student_hidden, student_lm_head, teacher_hidden, teacher_lm_head, labels)

Modules: LinearJSD, LinearCrossEntropy, JSD, CrossEntropy. Functions: distill_losses.functional. For transformers'
models: distill_losses.transformers.
"""

from . import _library

_library.load()

from . import functional  # noqa: E402  the operators must be there
from ._build_info import CUDA_ARCHITECTURES, CUDA_VERSION, TORCH_VERSION  # noqa: E402
from ._build_info import VERSION as __version__  # noqa: E402
from .metrics import LossWithMetrics, TokenMetrics  # noqa: E402
from .modules import JSD, CrossEntropy, LinearCrossEntropy, LinearJSD  # noqa: E402

__all__ = [
    "CUDA_ARCHITECTURES",
    "CUDA_VERSION",
    "TORCH_VERSION",
    "CrossEntropy",
    "JSD",
    "LinearCrossEntropy",
    "LinearJSD",
    "LossWithMetrics",
    "TokenMetrics",
    "__version__",
    "functional",
]
