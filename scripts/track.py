#!/usr/bin/env python3
"""Sends a run folder, finished or being written, to Weights & Biases or MLflow.

scripts/track.py runs/llama1b                              # Weights & Biases; WANDB_MODE=offline needs no network
scripts/track.py runs/llama1b --follow                     # until the run ends
MLFLOW_TRACKING_URI=sqlite:///mlflow.db scripts/track.py runs/llama1b --to mlflow

Run again, it sends what is new: track-wandb.json or track-mlflow.json in the run folder says what has been sent
(docs/report.md).
"""

import script_path

import contextlib
import sys
import time
from pathlib import Path

from shared.command_line import argument_parser, fail
from tracking.run_files import DamagedFile, RunFiles
from tracking.sender import Sender
from tracking.services import MissingPackage, service_of
from tracking.state import State


def parse_arguments():
    parser = argument_parser(__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="run folder (run.dir of the run)")
    parser.add_argument("--to", choices=("wandb", "mlflow"), default="wandb", help="service; default: wandb")
    parser.add_argument("--project", default="distill", help="project, or MLflow's experiment; default: distill")
    parser.add_argument("--name", help="name of the run there; default: the folder's name")
    parser.add_argument("--follow", action="store_true", help="send what is new until the run ends")
    parser.add_argument("--interval", type=float, default=10, metavar="SECONDS", help="of --follow; default: 10")
    parser.add_argument("--new", action="store_true", help="send everything again, to a new run of the service")
    return parser.parse_args()


def follow(sender, files, interval):
    """Sends until the run has ended, or until whoever wrote it is gone."""
    while True:
        over = files.ended() or not files.live()  # before the files are read: what came before it is sent
        sender.send_new()
        if over:
            return
        time.sleep(interval)


def main():
    options = parse_arguments()
    files = RunFiles(options.run)
    if problem := files.problem():
        fail(problem)
    state = State(options.run / f"track-{options.to}.json", fresh=options.new)
    try:
        service = service_of(options.to, files, state, options.project, options.name or options.run.resolve().name)
    except MissingPackage as missing:
        fail(str(missing))
    sender = Sender(files, state, service)
    with contextlib.suppress(KeyboardInterrupt):
        try:
            if options.follow:
                follow(sender, files, options.interval)
            else:
                sender.send_new()
            if files.ended() or not files.live():
                sender.send_end()
        except DamagedFile as damaged:
            service.close(failed=True)
            fail(f"{damaged}; what came before it has been sent")
    service.close()
    if files.live() and not files.ended():
        print(f"the run is being written; run track.py again for the steps after {state.last_step}, or use --follow")
    print(f"{options.run}: steps up to {state.last_step} are sent; {service.where()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
