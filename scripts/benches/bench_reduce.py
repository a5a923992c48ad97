#!/usr/bin/env python3
"""Measures what reducing a block's gradient costs the products that it overlaps with: by NCCL, or by copies and a sum.

  torchrun --nproc-per-node 2 scripts/benches/bench_reduce.py
  torchrun --nproc-per-node 2 scripts/benches/bench_reduce.py --elements 218112000 --json OUT

Each way sums a unit's fp32 gradient over the ranks into each rank's shard, on a stream of its own, while the compute
stream runs products that take longer than it. `nccl` is reduce-scatter from ordinary memory, `registered` the same from
symmetric memory that NCCL knows, `copy` copies of the other ranks' parts out of their symmetric memory, by the copy
engines, and a sum. The products' shapes are those of a Llama-8B block with 8192 tokens. Prints, for each way, the
milliseconds alone, and those that it adds to the products: medians over rounds in which the ways follow one another.
Without GPUs it runs nccl's collective with Gloo, for tests.
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

BLOCK = 218_112_000  # parameters of a Llama-8B block
ROWS, INNER, COLUMNS = 8192, 4096, 14336


class Reduction:
    """One way to sum `whole` over the ranks into `shard`; the same random gradient on every run."""

    def __init__(self, elements, device):
        self.ranks, self.rank, self.device = dist.get_world_size(), dist.get_rank(), device
        self.part = elements // self.ranks
        self.shard = torch.empty(self.part, device=device)
        self.whole = self.allocate(self.part * self.ranks)
        generator = torch.Generator(device=device).manual_seed(self.rank)
        self.whole.normal_(generator=generator)

    def allocate(self, elements):
        return torch.empty(elements, device=self.device)

    def run(self):
        dist.reduce_scatter_tensor(self.shard, self.whole)


class Registered(Reduction):
    def allocate(self, elements):
        import torch.distributed._symmetric_memory as symmetric

        memory = symmetric.empty(elements, dtype=torch.float32, device=self.device)
        self.handle = symmetric.rendezvous(memory, dist.group.WORLD.group_name)
        return memory


class Copies(Registered):
    def __init__(self, elements, device):
        super().__init__(elements, device)
        self.peers = [self.handle.get_buffer(rank, self.whole.shape, torch.float32) for rank in range(self.ranks)]
        self.staged = torch.empty(self.part, device=device)

    def run(self):
        self.handle.barrier(channel=0)  # every rank's gradient is written
        own = slice(self.rank * self.part, (self.rank + 1) * self.part)
        for step in range(1, self.ranks):
            self.staged.copy_(self.peers[(self.rank + step) % self.ranks][own], non_blocking=True)
            torch.add(self.whole[own] if step == 1 else self.shard, self.staged, out=self.shard)
        self.handle.barrier(channel=1)  # no rank reads this one's gradient any more


def synchronize(device):
    if device.type == "cuda":
        torch.cuda.synchronize()


def timed(work, device):
    """Seconds of the slowest rank."""
    dist.barrier()
    synchronize(device)
    begin = time.perf_counter()
    work()
    synchronize(device)
    took = torch.tensor(time.perf_counter() - begin, dtype=torch.float64, device=device)
    dist.all_reduce(took, dist.ReduceOp.MAX)
    return took.item()


def measure(ways, products, device, rounds, reductions):
    """{way: (seconds alone, seconds that it adds to the products)}, of one reduction."""
    side = torch.cuda.Stream(priority=-1) if device.type == "cuda" else None

    def reduce(way):
        with torch.cuda.stream(side) if side is not None else torch.no_grad():
            for _ in range(reductions):
                way.run()

    def both(way):
        reduce(way)
        products()

    found = {name: ([], []) for name in ways}
    for _ in range(rounds + 1):
        alone = timed(products, device)
        for name, way in ways.items():
            found[name][0].append(timed(lambda way=way: reduce(way), device) / reductions)
            found[name][1].append((timed(lambda way=way: both(way), device) - alone) / reductions)
    return {name: tuple(statistics.median(times[1:]) for times in both) for name, both in found.items()}


def main():
    parser = argument_parser(__doc__)
    parser.add_argument("--elements", type=at_least(1), default=BLOCK, help="of the unit")
    parser.add_argument("--rounds", type=at_least(1), default=7)
    parser.add_argument("--reductions", type=at_least(1), default=4, help="in a row, beside as many blocks' products")
    parser.add_argument("--json", type=Path, help="file for the results")
    args = parser.parse_args()
    os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"  # as in the trainer
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    kinds = {"nccl": Reduction, "registered": Registered, "copy": Copies} if cuda else {"nccl": Reduction}
    ways = {name: kind(args.elements, device) for name, kind in kinds.items()}
    sums = []
    for way in ways.values():
        way.run()
        synchronize(device)
        sums.append(way.shard.clone())
    for name, found in zip(ways, sums, strict=True):
        torch.testing.assert_close(found, sums[0], msg=f"{name} has another sum than nccl")

    scale = 1 if cuda else 64
    left = torch.randn(ROWS // scale, INNER // scale, device=device, dtype=torch.bfloat16 if cuda else torch.float32)
    right = torch.randn(INNER // scale, COLUMNS // scale, device=device, dtype=left.dtype)

    def products():
        for _ in range(10 * args.reductions):  # a block's backward pass has about 14 of half this size
            torch.mm(left, right)

    found = measure(ways, products, device, args.rounds, args.reductions)
    if dist.get_rank() == 0:
        ranks = dist.get_world_size()
        gpu = torch.cuda.get_device_name() if cuda else "CPU"
        print(f"{args.elements} elements in fp32 over {ranks} ranks on {gpu}")
        for name, (alone, added) in found.items():
            print(f"  {name:<12} alone {1e3 * alone:7.3f} ms   added to the products {1e3 * added:7.3f} ms")
        if args.json:
            args.json.write_text(json.dumps({"ranks": ranks, "elements": args.elements, "seconds": found}, indent=1))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
