"""Time and memory of functions on one GPU; on the CPU where there is none, for rehearsals."""

import random
import statistics
import time

import torch

from loss_head.report import first_line

WARM_UP = 2
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def elapsed(function):
    """Milliseconds between two events on the current stream."""
    if DEVICE == "cpu":
        begin = time.perf_counter()
        function()
        return 1e3 * (time.perf_counter() - begin)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    function()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end)


def interleaved(functions, reps, failed=None):
    """name -> (median, minimum, maximum) milliseconds. One that fails is left out, and its reason goes into `failed`.

    The functions run in turn, so that clocks and heat are shared, and in another order in each round: in a fixed order
    the one that follows a function which keeps the chip at its power limit differs from the others by a few per cent.
    """
    times, failed = {name: [] for name in functions}, {} if failed is None else failed
    order, shuffle = list(functions.items()), random.Random(0).shuffle
    for repetition in range(reps + WARM_UP):
        shuffle(order)
        for name, function in order:
            if name in failed:
                continue
            try:
                t = elapsed(function)
            except Exception as error:  # a peer or a geometry that this machine cannot run
                failed[name] = first_line(error)
                print(f"  {name}: failed, {failed[name]}", flush=True)
                if DEVICE == "cuda":
                    torch.cuda.empty_cache()
                continue
            if repetition >= WARM_UP:
                times[name].append(t)
    ran = {name: t for name, t in times.items() if name not in failed}
    return {name: (statistics.median(t), min(t), max(t)) for name, t in ran.items()}


def extra_peak_mib(function):
    """MiB allocated at the peak beyond what was there before (None on the CPU), and what the function returned."""
    result = function()
    if DEVICE == "cpu":
        return None, result
    del result
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = function()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20, result
