#!/usr/bin/env python3
"""Times the loss head on one GPU: ours, the matrix products alone, and peers when importable, interleaved in one run.

  head     forward + backward of JSD and cross-entropy: time, ratio to the matrix products at their best chunk, extra
           peak memory (without the two gradients), loss and gradient error against fp64 on the first tokens
  rows     the row kernel alone, every geometry, against the copy bandwidth measured in the same run

Peers (Liger-Kernel, cut-cross-entropy) are timed where Python can import them. Results go to --out as JSON and a PNG.
Example: scripts/bench_loss_head.py --library build/release/losses/libdistill_losses.so --cap 1024,4096 --reps 20
"""
import argparse
import json
import os
import statistics
import sys

import torch

BF16, FP32 = torch.bfloat16, torch.float32
DIVERGENCES = ["none", "jsd", "forward_kl", "reverse_kl", "skew_forward_kl", "skew_reverse_kl", "total_variation"]
STREAMING, CLUSTER = 2, 1


def options(divergence="jsd", beta=0.5, temperature=1.0, hard_weight=0.0, soft_weight=1.0):
    """The option list of distill's inner operators."""
    return [float(DIVERGENCES.index(divergence)), beta, 0.1, temperature, 0.0, hard_weight, soft_weight, 0.0, 0.0, 0.0, 0.0, 0.0]


def elapsed(function):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    function()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end)


def interleaved(functions, reps):
    """Median milliseconds of each function, run in turn so that clocks and heat are shared. Failures become None."""
    times, dead = {name: [] for name in functions}, {}
    for repetition in range(reps + 2):
        for name, function in functions.items():
            if name in dead:
                continue
            try:
                t = elapsed(function)
            except Exception as error:  # a peer or a geometry that this machine cannot run
                dead[name] = f"{type(error).__name__}: {str(error)[:160]}"
                continue
            if repetition >= 2:
                times[name].append(t)
    for name, why in dead.items():
        print(f"  {name}: failed, {why}", flush=True)
    return {name: (statistics.median(t), min(t), max(t)) for name, t in times.items() if t}


def extra_peak_mib(function):
    function()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    function()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


class Problem:
    def __init__(self, tokens, vocab, hidden, teacher_hidden):
        torch.manual_seed(0)
        self.n, self.v, self.h, self.g = tokens, vocab, hidden, teacher_hidden
        normal = lambda *shape: torch.randn(*shape, device="cuda", dtype=BF16)
        self.x, self.w = normal(tokens, hidden), normal(vocab, hidden) * hidden**-0.5
        self.y = torch.randint(0, vocab, (tokens,), device="cuda")
        self.tx = self.tw = None
        if teacher_hidden:
            self.tx, self.tw = normal(tokens, teacher_hidden), normal(vocab, teacher_hidden) * teacher_hidden**-0.5
        self.gx = torch.empty_like(self.x)
        self.gw = torch.zeros(vocab, hidden, device="cuda", dtype=FP32)

    def products(self, chunk, gradient_chunk):
        """The matrix products that no head can avoid, in bf16, weight gradient in fp32."""
        z = torch.randn(chunk, self.v, device="cuda", dtype=BF16)
        tz = torch.empty_like(z) if self.g else None
        g = torch.randn(gradient_chunk, self.v, device="cuda", dtype=BF16) * 1e-3

        def run():
            for start in range(0, self.n, gradient_chunk):
                for c in range(start, start + gradient_chunk, chunk):
                    torch.mm(self.x[c : c + chunk], self.w.t(), out=z)
                    if self.g:
                        torch.mm(self.tx[c : c + chunk], self.tw.t(), out=tz)
                rows = slice(start, start + gradient_chunk)
                torch.mm(g, self.w, out=self.gx[rows])
                if start == 0:
                    torch.mm(g.t(), self.x[rows], out_dtype=FP32, out=self.gw)
                else:
                    torch.addmm(self.gw, g.t(), self.x[rows], out_dtype=FP32, out=self.gw)

        return run

    def loss(self):
        return {} if self.g else {"divergence": "none", "hard_weight": 1.0, "soft_weight": 0.0}

    def head(self, cap, chunk=0):
        def run():
            return torch.ops.distill.linear_head_into(
                self.x, self.w, self.tx, self.tw, self.y, hidden_gradient=self.gx, weight_gradient=self.gw,
                grad_scale=1.0 / self.n, accumulate=False, chunk_size=chunk, memory_cap_mb=cap, **self.loss())

        return run

    def autograd(self, cap):
        def run():
            x, w = self.x.detach().requires_grad_(True), self.w.detach().requires_grad_(True)
            if self.g:
                loss, _ = torch.ops.distill.linear_jsd(x, w, self.tx, self.tw, self.y, memory_cap_mb=cap)
            else:
                loss, _ = torch.ops.distill.linear_cross_entropy(x, w, self.y, memory_cap_mb=cap)
            loss.backward()
            return x.grad, w.grad

        return run

    def peers(self):
        found = {}
        leaf = lambda: (self.x.detach().requires_grad_(True), self.w.detach().requires_grad_(True))
        try:
            if self.g:
                from liger_kernel.chunked_loss.jsd_loss import LigerFusedLinearJSDLoss

                for chunk in (1024, 4096):
                    module = LigerFusedLinearJSDLoss(
                        weight_hard_loss=0.0, weight_soft_loss=1.0, beta=0.5, compiled=True, chunk_size=chunk)

                    def run(module=module):
                        x, w = leaf()
                        module(x, w, self.tx, self.tw, self.y).backward()

                    found[f"Liger chunked_loss compiled, chunk {chunk}"] = run
            else:
                from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction as Flce

                def run():
                    x, w = leaf()
                    result = Flce.apply(x, w, self.y, None, None, -100, 0.0, 0.0, "mean", None, False, FP32)
                    (result[0] if isinstance(result, tuple) else result).backward()

                found["Liger FLCE, fp32 accumulation"] = run
        except ImportError:
            pass
        if not self.g:
            try:
                from cut_cross_entropy import linear_cross_entropy

                def run():
                    x, w = leaf()
                    linear_cross_entropy(x, w, self.y).backward()

                found["cut-cross-entropy"] = run
            except ImportError:
                pass
        return found

    def errors(self, cap, tokens=256):
        """Relative error of loss and gradients on the first tokens against fp64 on the same bf16 inputs."""
        n = min(tokens, self.n)
        gx, gw = torch.empty_like(self.x[:n]), torch.zeros_like(self.gw)
        tx = self.tx[:n] if self.g else None
        rows = torch.ops.distill.linear_head_into(
            self.x[:n], self.w, tx, self.tw, self.y[:n], hidden_gradient=gx, weight_gradient=gw, memory_cap_mb=cap,
            **self.loss())
        exact = Fp64(self.x[:n], self.w, tx, self.tw, self.y[:n])
        relative = lambda a, b: ((a.double() - b).norm() / b.norm()).item()
        sample = slice(0, self.v, max(self.v // 2048, 1))
        return {"loss": relative(rows[0], exact.loss), "d_hidden": relative(gx, exact.gx),
                "d_weight": relative(gw[sample], exact.gw[sample])}


class Fp64:
    """JSD (beta 0.5) with a teacher, cross-entropy without, from fp64 logits, 64 tokens at a time."""

    def __init__(self, x, w, tx, tw, y):
        w64, tw64 = w.double(), None if tw is None else tw.double()
        self.gw, losses, gx = torch.zeros_like(w64), [], []
        for s in range(0, len(x), 64):
            xc = x[s : s + 64].double()
            q = torch.log_softmax(xc @ w64.t(), -1)
            if tx is None:
                losses.append(-q.gather(1, y[s : s + 64, None])[:, 0])
                g = q.exp()
                g.scatter_add_(1, y[s : s + 64, None], torch.full_like(g[:, :1], -1.0))
            else:
                p = torch.log_softmax(tx[s : s + 64].double() @ tw64.t(), -1)
                m = torch.logaddexp(p, q) - torch.tensor(2.0, dtype=torch.float64).log()
                a = q - m
                kl = (q.exp() * a).sum(-1, keepdim=True)
                losses.append(0.5 * (p.exp() * (p - m)).sum(-1) + 0.5 * kl[:, 0])
                g = 0.5 * q.exp() * (a - kl)
            gx.append(g @ w64)
            self.gw += g.t() @ xc
        self.loss, self.gx = torch.cat(losses), torch.cat(gx)


def bench_head(args, kind, tokens, vocab, hidden, teacher_hidden):
    problem = Problem(tokens, vocab, hidden, teacher_hidden)
    print(f"\n{kind} N={tokens} V={vocab} Hs={hidden} Ht={teacher_hidden}", flush=True)
    bound = {}
    for chunk in args.products:
        if chunk <= tokens:
            bound[f"products alone, chunk {chunk}"] = problem.products(chunk, max(chunk, min(4096, tokens)) if chunk < 1024 else chunk)
    ours = {}
    for cap in args.cap:
        ours[f"distill, cap {cap} MiB"] = problem.head(cap)
        for chunk in args.chunk:
            ours[f"distill, cap {cap} MiB, chunk {chunk}"] = problem.head(cap, chunk)
    if args.autograd:
        ours["distill autograd, cap 1024 MiB"] = problem.autograd(1024)
    peers = problem.peers()
    peaks = {name: extra_peak_mib(function) for name, function in ours.items()}
    times = interleaved({**bound, **ours, **peers}, args.reps)
    best = min(t[0] for name, t in times.items() if name in bound)
    errors = problem.errors(args.cap[0]) if args.errors else {}
    results = []
    for name, (median, low, high) in times.items():
        peak = f"{peaks[name]:8.0f} MiB" if name in peaks else ""
        print(f"  {name:44s} {median:8.2f} ms ({low:.2f} to {high:.2f})  x{median / best:.3f}  {peak}", flush=True)
        results.append({"kind": kind, "n": tokens, "v": vocab, "h": hidden, "ht": teacher_hidden, "name": name, "ms": median,
                        "min": low, "max": high, "ratio": median / best, "extra_peak_mib": peaks.get(name)})
    if errors:
        print("  error against fp64: " + ", ".join(f"{k} {v:.2e}" for k, v in errors.items()), flush=True)
    return results, errors


def bench_rows(args, vocab, teacher):
    rows = max(512, int(1.5e9 / (vocab * 4)) // 132 * 132)
    pad = (vocab + 63) // 64 * 64
    buffer = lambda: torch.randn(rows, pad, device="cuda", dtype=FP32)[:, :vocab]
    s, t = buffer(), buffer() if teacher else None
    g = torch.empty(rows, pad, device="cuda", dtype=BF16)[:, :vocab]
    y = torch.randint(0, vocab, (rows,), device="cuda")
    opts = options("jsd", hard_weight=0.5) if teacher else options("none", hard_weight=1.0, soft_weight=0.0)
    source = torch.empty(2**30, device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)
    functions = {"copy": lambda: target.copy_(source)}

    def add(name, strategy, cluster, threads):
        functions[name] = lambda: torch.ops.distill._logits_rows(s, t, y, None, opts, g, strategy, cluster, threads)

    add("automatic", 0, 0, 0)
    add("streaming", STREAMING, 0, 0)
    for threads in (512, 256):
        for cluster in (1, 2, 3, 4, 6, 8, 10, 12, 16):
            vectors = -(-(-(-vocab // cluster)) // (4 * threads))
            if 2 <= vectors <= 18:
                add(f"cluster {cluster} x {threads}", CLUSTER, cluster, threads)
    times = interleaved(functions, args.reps)
    copy = 2 * source.numel() / times["copy"][0] / 1e6
    moved = rows * vocab * (10 if teacher else 6)
    print(f"\nrow kernel, {'JSD' if teacher else 'CE'}, {rows} rows of {vocab}, copy {copy:.0f} GB/s", flush=True)
    results = []
    for name, (median, low, _) in times.items():
        if name != "copy":
            rate = moved / median / 1e6
            print(f"  {name:20s} {median:8.3f} ms  {rate:7.0f} GB/s  {100 * rate / copy:5.1f} % of copy", flush=True)
            results.append({"v": vocab, "teacher": teacher, "name": name, "ms": median, "gb_s": rate, "of_copy": rate / copy})
    return results


def plot(path, head):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    cases = sorted({(r["kind"], r["h"], r["ht"], r["v"]) for r in head})
    figure, axes = pyplot.subplots(len(cases), 1, figsize=(9, 2.6 * len(cases)), squeeze=False)
    for axis, case in zip(axes[:, 0], cases):
        rows = [r for r in head if (r["kind"], r["h"], r["ht"], r["v"]) == case]
        axis.barh([r["name"] for r in rows], [r["ms"] for r in rows])
        axis.set_title(f"{case[0]}, Hs {case[1]}, Ht {case[2]}, V {case[3]}")
        axis.set_xlabel("ms, forward + backward")
        axis.invert_yaxis()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main():
    numbers = lambda text: [int(x) for x in text.split(",") if x]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", default="build/release/losses/libdistill_losses.so")
    parser.add_argument("--what", default="rows,head")
    parser.add_argument("--tokens", type=numbers, default=[16384])
    parser.add_argument("--vocab", type=numbers, default=[128256])
    parser.add_argument("--shapes", default="jsd:4096:4096,jsd:2048:4096,ce:4096:0", help="kind:Hs:Ht, comma-separated")
    parser.add_argument("--row-vocab", type=numbers, default=[32000, 49152, 128256, 151936, 262144])
    parser.add_argument("--cap", type=numbers, default=[1024, 4096], help="memory_cap_mb values")
    parser.add_argument("--chunk", type=numbers, default=[], help="explicit chunk sizes to try as well")
    parser.add_argument("--products", type=numbers, default=[1024, 2048, 4096], help="chunks of the matrix products alone")
    parser.add_argument("--reps", type=int, default=20)
    parser.add_argument("--autograd", action="store_true", help="time the autograd operators too")
    parser.add_argument("--errors", action="store_true", help="errors against fp64 too")
    parser.add_argument("--out", default="bench_loss_head")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("bench_loss_head.py needs a GPU, and PyTorch finds none on this machine")
    torch.ops.load_library(os.path.abspath(args.library))
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {args.reps} repetitions, random data", flush=True)
    report = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "reps": args.reps, "rows": [], "head": [], "errors": []}
    os.makedirs(os.path.dirname(os.path.abspath(args.out)), exist_ok=True)

    def save():
        with open(args.out + ".json", "w") as file:
            json.dump(report, file, indent=1)

    if "rows" in args.what:
        for vocab in args.row_vocab:
            for teacher in (True, False):
                report["rows"] += bench_rows(args, vocab, teacher)
                torch.cuda.empty_cache()
        save()
    if "head" in args.what:
        for shape in args.shapes.split(","):
            kind, hidden, teacher_hidden = shape.split(":")
            for tokens in args.tokens:
                for vocab in args.vocab:
                    results, errors = bench_head(args, kind, tokens, vocab, int(hidden), int(teacher_hidden))
                    report["head"] += results
                    report["errors"].append({"shape": shape, "n": tokens, "v": vocab, **errors})
                    torch.cuda.empty_cache()
        plot(args.out + ".png", report["head"])
        save()


if __name__ == "__main__":
    main()
