#!/usr/bin/env python3
"""Measures what a layer's experts cost between GPUs: gathering all of them, or moving the tokens to them and back.

  torchrun --nproc-per-node 4 scripts/benches/bench_experts_traffic.py
  torchrun --nproc-per-node 2 scripts/benches/bench_experts_traffic.py --tokens 4096,8192,32768 --json OUT

The sizes are those of Qwen3-30B-A3B by default, in bf16. Gathering is one all-gather of the layer's shards; moving
tokens is two all-to-alls, of the rows that the experts read and of those that they write, with as many rows for each
rank (routing that is not balanced makes the fullest rank slower). Both are alone on the GPUs: neither overlaps with
computation. Prints the median time of each; without GPUs it runs with Gloo, for tests.
"""

import script_path

import json
import os
import statistics
import time
from pathlib import Path

import torch
import torch.distributed as dist

from shared.command_line import argument_parser, at_least


def measured(function, device, repetitions):
    """Median seconds of function(), of the slowest rank."""
    seconds = []
    for _ in range(repetitions + 2):
        dist.barrier()
        if device.type == "cuda":
            torch.cuda.synchronize()
        begin = time.perf_counter()
        function()
        if device.type == "cuda":
            torch.cuda.synchronize()
        took = torch.tensor(time.perf_counter() - begin, dtype=torch.float64, device=device)
        dist.all_reduce(took, dist.ReduceOp.MAX)
        seconds.append(took.item())
    return statistics.median(seconds[2:])


def main():
    parser = argument_parser(__doc__)
    parser.add_argument("--experts", type=at_least(1), default=128)
    parser.add_argument("--hidden", type=at_least(1), default=2048)
    parser.add_argument("--ffn", type=at_least(1), default=768, help="of one expert")
    parser.add_argument("--per-token", type=at_least(1), default=8, help="experts that a token visits")
    parser.add_argument("--tokens", default="2048,8192,32768", help="tokens of a rank, comma-separated")
    parser.add_argument("--repetitions", type=at_least(1), default=10)
    parser.add_argument("--json", type=Path, metavar="OUT")
    options = parser.parse_args()
    gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpu else "gloo", device_id=device if gpu else None)
    ranks, say = dist.get_world_size(), print if dist.get_rank() == 0 else lambda line: None
    elements = options.experts * 3 * options.hidden * options.ffn
    shard = torch.zeros(-(-elements // ranks), dtype=torch.bfloat16, device=device)
    whole = torch.empty(shard.numel() * ranks, dtype=torch.bfloat16, device=device)
    gather = measured(lambda: dist.all_gather_into_tensor(whole, shard), device, options.repetitions)
    say(f"gather of a layer's experts: {2 * elements / 2**20:.0f} MiB, {gather * 1e3:.3f} ms")
    report = {"ranks": ranks, "layer_bytes": 2 * elements, "gather_s": gather, "moved": []}
    for tokens in map(int, options.tokens.split(",")):
        visits = -(-tokens * options.per_token // ranks) * ranks
        rows = torch.zeros(visits, options.hidden, dtype=torch.bfloat16, device=device)
        received = torch.empty_like(rows)

        def there_and_back(rows=rows, received=received):
            dist.all_to_all_single(received, rows)
            dist.all_to_all_single(rows, received)

        move = measured(there_and_back, device, options.repetitions)
        say(f"{tokens} tokens to their experts and back: {move * 1e3:.3f} ms; gather: {gather / move:.2f} times that")
        report["moved"].append({"tokens": tokens, "seconds": move})
    if options.json and dist.get_rank() == 0:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
