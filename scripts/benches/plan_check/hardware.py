"""The GPUs and the host memory of this machine."""

import subprocess
import sys
import time
from pathlib import Path

from .rows import GIB


def available_host_bytes():
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def grow_host(need, say):
    """Touches `need` bytes of host memory once, a GiB at a time, until no more becomes available.

    Some virtual machines receive their memory only when it is used; until then it does not count as available.
    """
    size = int(1.1 * need / GIB) + 8
    if need < GIB or size * GIB <= available_host_bytes():
        return
    code = f"""
import time, numpy
open("/proc/self/oom_score_adj", "w").write("1000")
def available():
    return next(int(line.split()[1]) for line in open("/proc/meminfo") if line.startswith("MemAvailable:")) >> 20
held = []
while len(held) < {size}:
    tries = 30
    while available() < 6 and tries > 0:
        tries -= 1
        time.sleep(0.1)
    if tries == 0:
        break
    held.append(numpy.ones(2**30, dtype="u1"))
print(len(held))"""
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    say(
        f"(touched {done.stdout.strip() or 'not all'} of {size} GiB of host memory "
        f"in {time.monotonic() - began:.0f} s; "
        f"available now {available_host_bytes() / GIB:.0f} GiB)"
    )
