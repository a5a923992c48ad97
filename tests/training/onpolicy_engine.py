#!/usr/bin/env python3
"""A stand-in for an engine that writes completions: a command of onpolicy.command, with the faults that engines have.

What it writes follows from each request's seed alone: a completion of 1 to max_new_tokens tokens, of which every third
is truncated. With --texts it is one of these texts, truncated where it is longer."""

import argparse
import errno
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

END = 1  # the end-of-text token of the tests' students


def random_ids(numbers, most, truncated, args):
    ids = [numbers.randint(2, args.vocab - 1) for _ in range(most if truncated else numbers.randint(1, most))]
    return ids if truncated else [*ids[:-1], args.end]


def completion(request, args):
    numbers = random.Random(request["seed"])
    most = request["max_new_tokens"]
    truncated = request["id"] % 3 == 2
    if args.texts:
        text = [*numbers.choice(json.loads(Path(args.texts).read_text())), args.end]
        ids, truncated = text[:most], len(text) > most
    else:
        ids = random_ids(numbers, most, truncated, args)
    return {
        "id": request["id"],
        "prompt_ids": request["prompt_ids"],
        "completion_ids": ids,
        "finish_reason": "length" if truncated else "stop",
        "logprobs": None,
        "weight_version": request["weight_version"],
        "teacher": None,
    }


def wrong(fault, made, vocab):
    """A line with something wrong."""
    changes = {
        "garbage": lambda: "<html>502 Bad Gateway</html>",
        "empty": lambda: made | {"completion_ids": []},
        "foreign": lambda: made | {"completion_ids": [vocab + 7], "finish_reason": "length"},
        "prompt": lambda: made | {"prompt_ids": made["prompt_ids"] + [3]},
        "stale": lambda: made | {"weight_version": "step-0-0123456789abcdef"},
        "reason": lambda: made | {"finish_reason": "error"},
        "logprobs": lambda: made | {"logprobs": [0.5] * len(made["completion_ids"])},
    }
    line = changes[fault]()
    return line if isinstance(line, str) else json.dumps(line)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--prompts", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--vocab", type=int, required=True)
    parser.add_argument("--end", type=int, default=END, help="the token that ends a text")
    parser.add_argument("--texts", help="file with lists of ids, without that token")
    parser.add_argument("--fault", default="")
    parser.add_argument("--share", type=float, default=1.0, help="of the lines with the fault")
    parser.add_argument("--slow", type=float, default=0, help="seconds for each line")
    parser.add_argument("--mark", default="engine-mark", help="stands in the command line of each process")
    args = parser.parse_args()
    requests = [json.loads(line) for line in Path(args.prompts).read_text().splitlines()]
    print(f"engine: {len(requests)} prompts", flush=True)
    if args.fault == "hang":
        # Another process, in a group of its own, that ignores SIGTERM.
        code = "import os, signal, sys, time; os.setsid(); signal.signal(15, signal.SIG_IGN); time.sleep(1000)"
        subprocess.Popen([sys.executable, "-c", code, args.mark])
        time.sleep(1000)
    with open(args.output, "a", encoding="utf-8") as output:
        for number, request in enumerate(requests):
            if args.fault == "crash" and number == len(requests) // 2:
                output.write('{"id": ')
                output.flush()
                print("engine: out of memory", file=sys.stderr, flush=True)
                os.abort()
            if args.fault == "full" and number == len(requests) // 2:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            line = json.dumps(completion(request, args))
            if args.fault not in ("", "crash", "full", "silent") and number < args.share * len(requests):
                line = wrong(args.fault, completion(request, args), args.vocab)
            if args.fault != "silent":
                output.write(line + "\n")
                output.flush()
            time.sleep(args.slow)


if __name__ == "__main__":
    main()
