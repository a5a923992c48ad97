"""The matrix products that every head needs, alone: what the heads' times are compared with."""

import torch


def fp32_product(out, left, right, accumulates=False):
    """out = left right, or out + left right, in fp32 from inputs of fewer bits."""
    if out.device.type == "cpu":  # which has no such product
        out.copy_(left.float() @ right.float() + (out if accumulates else 0))
    elif accumulates:
        torch.addmm(out, left, right, out_dtype=torch.float32, out=out)
    else:
        torch.mm(left, right, out_dtype=torch.float32, out=out)


class Products:
    """The products of one problem, on buffers for chunks of up to `largest` tokens.

    The logits are of the inputs' dtype, and with `fp32` of fp32 where that is asked for; the weight gradient
    accumulates in fp32.
    """

    def __init__(self, problem, largest, fp32=False):
        x, w = problem.hidden, problem.weight
        self.problem = problem
        self.tokens = problem.tokens
        gradients = min(max(largest, self.gradient_chunk(1)), self.tokens)
        dtypes = (x.dtype, torch.float32) if fp32 else (x.dtype,)
        self.logits = {dtype: torch.empty(largest, problem.vocab, device=x.device, dtype=dtype) for dtype in dtypes}
        self.gradient = torch.randn(gradients, problem.vocab, device=x.device, dtype=x.dtype) * 1e-3
        self.d_hidden, self.d_weight = torch.empty_like(x), torch.empty_like(w, dtype=torch.float32)

    def gradient_chunk(self, chunk):
        """The tokens whose gradients are there at once, for logits of `chunk` tokens."""
        return chunk if chunk >= 1024 else min(4096, self.tokens)

    def chunk_logits(self, part, dtype):
        problem = self.problem
        out = self.logits[dtype][: part.stop - part.start]
        sides = [(problem.hidden, problem.weight), (problem.teacher_hidden, problem.teacher_weight)]
        for hidden, weight in sides[: 1 if problem.teacher_hidden is None else 2]:
            if dtype == hidden.dtype:
                torch.mm(hidden[part], weight.t(), out=out)
            else:
                fp32_product(out, hidden[part], weight.t())

    def chunk_gradients(self, rows):
        g = self.gradient[: rows.stop - rows.start]
        torch.mm(g, self.problem.weight, out=self.d_hidden[rows])
        fp32_product(self.d_weight, g.t(), self.problem.hidden[rows], accumulates=rows.start > 0)

    def run(self, chunk, logits=True, gradients=True, fp32=False):
        """All products, or those of the logits or of the gradients alone."""
        dtype = torch.float32 if fp32 else self.problem.hidden.dtype
        step = self.gradient_chunk(chunk)
        for start in range(0, self.tokens, step):
            rows = slice(start, min(start + step, self.tokens))
            for first in range(rows.start, rows.stop, chunk) if logits else ():
                self.chunk_logits(slice(first, min(first + chunk, rows.stop)), dtype)
            if gradients:
                self.chunk_gradients(rows)
