#!/usr/bin/env python3
"""Writes the completions of an on-policy round with transformers: a command for onpolicy.command (docs/onpolicy.md).

  onpolicy:
    command: .venv/bin/python scripts/rollout_transformers.py --model {model} --prompts {prompts} --output {output}

A completion is written as soon as it ends. The command starts Python and loads the model anew in each round;
scripts/serve_transformers.py samples in the same way and lives through all rounds.
"""

import script_path

import time

from rollout.exchange import read_requests
from rollout.sampling import add_model_arguments, batches_of, load_model, load_tokenizer, write_batch
from shared.command_line import argument_parser, at_least


def main():
    parser = argument_parser(__doc__)
    add = parser.add_argument
    add("--model", required=True, metavar="FOLDER", help="the student: a Hugging Face folder")
    add("--prompts", required=True, metavar="FILE", help="requests, a line of JSON each")
    add("--output", required=True, metavar="FILE", help="completions, a line of JSON each; lines are added")
    add("--batch-size", type=at_least(1), default=32, metavar="N", help="completions written together (default 32)")
    add_model_arguments(add)
    args = parser.parse_args()
    rows = read_requests(args.prompts)
    model = load_model(args.model, args)
    tokenizer = load_tokenizer(args.model) if any(row.stop for row in rows) else None
    began, tokens, done = time.monotonic(), 0, 0
    with open(args.output, "a", encoding="utf-8") as output:

        def write(row):
            output.write(row.line() + "\n")
            output.flush()

        for batch in batches_of(rows, args.batch_size):
            write_batch(model, tokenizer, batch, write)
            tokens += sum(len(row.ids) for row in batch)
            done += len(batch)
            speed = tokens / (time.monotonic() - began)
            print(f"{done} of {len(rows)} completions, {tokens} tokens, {speed:.0f} tokens/s", flush=True)


if __name__ == "__main__":
    main()
