#!/usr/bin/env python3
"""Writes the completions of an on-policy round with a vLLM or SGLang server: a command for onpolicy.command.

  onpolicy:
    command: >-
      .venv/bin/python scripts/rollout_http.py --url http://127.0.0.1:8000 --model {model} --version {version}
      --prompts {prompts} --output {output}

The server lives through all rounds. Before each of them it loads the student's weights from the folder, which should
lie in memory (onpolicy.weights_dir: /dev/shm), and its caches are reset. Only token ids are sent and received. Requests
that fail are tried again; an answer that is not what was asked for ends the round. docs/onpolicy.md says how to start
the servers.
"""

import script_path

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from rollout.exchange import read_requests
from rollout.servers import SERVERS, Connection, ServerError, wait_for
from shared.command_line import argument_parser, at_least, fail

TRIES = 3


def arguments():
    parser = argument_parser(__doc__)
    add = parser.add_argument
    add("--url", required=True, help="of the server: http://127.0.0.1:8000")
    add("--kind", choices=["auto", *SERVERS], default="auto", help="auto: by what it answers")
    add("--model", required=True, metavar="FOLDER", help="the student's weights, on the server's machine")
    add("--version", required=True, help="of the weights")
    add("--prompts", required=True, metavar="FILE", help="requests, a line of JSON each")
    add("--output", required=True, metavar="FILE", help="completions, a line of JSON each; lines are added")
    add("--concurrency", type=at_least(1), default=64, metavar="N", help="requests at a time (default 64)")
    add("--wait", type=float, default=900, metavar="S", help="seconds in which the server must be ready (default 900)")
    add("--timeout", type=float, default=600, metavar="S", help="seconds for one answer (default 600)")
    add("--no-load", action="store_true", help="the server keeps its weights: to see that this is noticed")
    add("--sleep", action="store_true", help="free the server's GPU memory after the round, and take it again before")
    return parser.parse_args()


def load_weights(server, connection, args):
    began = time.monotonic()
    if server.asleep(connection):
        server.wake(connection, args.model, args.version)
    else:
        server.load(connection, args.model, args.version)
    print(f"{server.name} has loaded {args.version} in {time.monotonic() - began:.1f} s", flush=True)


def write_row(server, args, row):
    """Lets the server continue one prompt."""
    for attempt in range(1, TRIES + 1):
        try:
            server.generate(Connection(args.url, args.timeout), row)
            return row
        except ServerError as error:
            if attempt == TRIES:
                raise ServerError(f"prompt {row.id}, {TRIES} times: {error}") from None
            time.sleep(0.2 * attempt)


def main():
    args = arguments()
    rows = read_requests(args.prompts)
    began, tokens, lock = time.monotonic(), 0, threading.Lock()
    try:
        connection = Connection(args.url, args.timeout)
        # /health of SGLang takes up to 20 s to say that the server is not well.
        server = wait_for(Connection(args.url, min(args.timeout, 30)), args.kind, args.wait)(connection)
        if not args.no_load:
            load_weights(server, connection, args)
        with open(args.output, "a", encoding="utf-8") as output, ThreadPoolExecutor(args.concurrency) as pool:

            def write(row):
                line = write_row(server, args, row).line() + "\n"
                with lock:
                    output.write(line)
                    output.flush()
                return len(row.ids)

            futures = [pool.submit(write, row) for row in rows]
            try:
                tokens = sum(future.result() for future in futures)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        if args.sleep:
            server.sleep(connection)
    except ServerError as error:
        fail(str(error))
    seconds = time.monotonic() - began
    print(f"{len(rows)} completions, {tokens} tokens in {seconds:.1f} s, {tokens / seconds:.0f} tokens/s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
