#!/usr/bin/env python3
"""Disturbs training runs at random times and checks that nothing is lost.

  scripts/checks/kill_test.py --mode kill --rounds 200     SIGKILL of a random rank, of all ranks, or of the launcher
  kill_test.py --mode disk --rounds 50      fills the disk (a small tmpfs) up to a few pages at a random time,
                                                    so that a write fails; a round without a failed write does not count
  scripts/checks/kill_test.py --mode flip --rounds 50      SIGKILL, then damages a file of the newest checkpoint
  scripts/checks/kill_test.py --mode stop --rounds 50      SIGTERM or SIGUSR1 to one random rank
  scripts/checks/kill_test.py --mode start --rounds 100    starts two jobs on one run folder, a random time apart

The run is resumed after each disturbance. Once it has reached its last step, it must equal an undisturbed run bit for
bit: the trained model, the tensors of the last checkpoint, and every line of metrics.jsonl apart from times and memory;
the event files for TensorBoard must have every point of these lines once. Then the next run starts, until --rounds
disturbances have happened. On a difference the script names it and exits with 1. In the last mode the folder holds
nothing, a whole run or what a killed job left, the two start anew, with --overwrite or with --resume, and a job may be
refused, but only for a reason that the folder gives.
"""

import script_path

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from kill_check.disturber import Disturber
from kill_check.job import Failure
from kill_check.rivals import Rivals
from shared.command_line import argument_parser

TMPFS_BYTES = 6_000_000  # room for the retained checkpoints, the one being written, and the model


def parse_arguments():
    parser = argument_parser(__doc__)
    parser.add_argument("--mode", choices=["kill", "disk", "flip", "stop", "start"], default="kill")
    parser.add_argument("--rounds", type=int, default=10, help="number of disturbances")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--teachers", type=int, choices=(1, 2), default=1, help="2: one runs, one is read from a cache")
    parser.add_argument("--steps", type=int, default=40, help="optimizer steps of each run")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument(
        "--work",
        type=Path,
        default=None,
        help="working folder; default: a temporary one, which remains after a failure",
    )
    options = parser.parse_args()
    options.seed = random.randrange(2**31) if options.seed is None else options.seed
    return options


def work_folder(options):
    folder = options.work or Path(tempfile.mkdtemp(prefix="kill_test-"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def small_disk(place):
    """Mounts a small tmpfs; a user other than root does so in a new mount namespace."""
    place.mkdir(parents=True, exist_ok=True)
    if os.path.ismount(place):
        subprocess.run(["umount", str(place)], check=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={TMPFS_BYTES}", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True).returncode == 0:
        return
    if os.environ.get("KILL_TEST_NAMESPACE"):
        sys.exit("kill_test.py: cannot mount a tmpfs")
    os.environ["KILL_TEST_NAMESPACE"] = "1"
    os.execvp("unshare", ["unshare", "--user", "--map-root-user", "--mount", sys.executable, *sys.argv])


def main():
    options = parse_arguments()
    folder = work_folder(options)
    began = time.monotonic()
    print(
        f"kill_test: mode {options.mode}, {options.rounds} rounds, {options.ranks} ranks, seed {options.seed}, "
        f"in {folder}",
        flush=True,
    )
    disturber = Disturber(options, folder)
    rivals = Rivals(disturber)
    done = runs = 0
    place = folder / "disturbed"
    try:
        expected = disturber.reference()
        while done < options.rounds:
            if options.mode == "start":
                done += rivals.round(place, expected)
            elif options.mode == "disk":
                small_disk(place)
                done += disturber.one_run(place, expected, options.rounds - done)
            else:
                shutil.rmtree(place, ignore_errors=True)
                done += disturber.one_run(place, expected, options.rounds - done)
            runs += 1
            print(
                f"kill_test: {done} of {options.rounds} disturbances, {runs} runs equal the undisturbed one, "
                f"{time.monotonic() - began:.0f} s",
                flush=True,
            )
    except Failure as failure:
        print(f"kill_test: FAILED after {done} disturbances (seed {options.seed}): {failure}", file=sys.stderr)
        return 1
    finally:
        if os.path.ismount(place):
            subprocess.run(["umount", "-l", str(place)], check=False)
    for what, count in sorted(disturber.seen.items()):
        print(f"  {count:4d}  {what}")
    if options.mode == "disk":
        print(f"kill_test: writes failed in {disturber.failing_writes} rounds")
        if disturber.failing_writes == 0:
            print("kill_test: FAILED: the disk was never full", file=sys.stderr)
            return 1
    if options.mode == "start":
        print(f"kill_test: {rivals.refused_in_use} starts were refused because the folder was in use")
        if rivals.refused_in_use == 0:
            print("kill_test: FAILED: no two jobs overlapped", file=sys.stderr)
            return 1
    print(f"kill_test: passed: {done} disturbances in {runs} runs of {options.steps} steps, no bit differs")
    if options.work is None:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
