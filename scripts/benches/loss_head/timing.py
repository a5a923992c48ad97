"""Time and memory of functions on one GPU."""

import random
import statistics

import torch

from report import first_line

WARM_UP = 2


def elapsed(function):
    """Milliseconds between two events on the current stream."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    function()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end)


def interleaved(functions, reps):
    """name -> (median, minimum, maximum) milliseconds. One that fails is left out and says why.

    The functions run in turn, so that clocks and heat are shared, and in another order in each round: in a fixed order
    the one that follows a function which keeps the chip at its power limit differs from the others by a few per cent.
    """
    times, dead = {name: [] for name in functions}, {}
    order, shuffle = list(functions.items()), random.Random(0).shuffle
    for repetition in range(reps + WARM_UP):
        shuffle(order)
        for name, function in order:
            if name in dead:
                continue
            try:
                t = elapsed(function)
            except Exception as error:  # a peer or a geometry that this machine cannot run
                dead[name] = first_line(error)
                torch.cuda.empty_cache()
                continue
            if repetition >= WARM_UP:
                times[name].append(t)
    for name, why in dead.items():
        print(f"  {name}: failed, {why}", flush=True)
    return {name: (statistics.median(t), min(t), max(t)) for name, t in times.items() if t}


def extra_peak_mib(function):
    """MiB allocated at the peak beyond what was there before, and what the function returned."""
    function()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = function()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20, result
