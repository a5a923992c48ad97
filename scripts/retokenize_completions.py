#!/usr/bin/env python3
"""Writes the completions of an on-policy round in the tokens of a teacher with a tokenizer of its own: a command for
onpolicy.retokenize (docs/onpolicy.md).

  onpolicy:
    retokenize: .venv/bin/python scripts/retokenize_completions.py --completions {completions} --output {output}

distill runs it after each onpolicy.command, with teacher.alignment: bytes. A line of --completions has the tokens of a
completion and the files of both tokenizers. A line of --output has the teacher's tokens of the same bytes, or says why
there are none.
"""

import script_path

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from rollout.teacher_tokens import Retokenizer, Unusable
from shared.command_line import argument_parser, fail
from token_shards.errors import InputError


def answer(retokenizer, line):
    try:
        made = retokenizer(line["completion_ids"])
        return {"id": line["id"], "tokens": made.tokens, "teacher_ids": made.ids}
    except Unusable as error:
        return {"id": line["id"], "error": str(error)}


def main():
    parser = argument_parser(__doc__)
    add = parser.add_argument
    add("--completions", required=True, metavar="FILE", help="completions, a line of JSON each")
    add("--output", required=True, metavar="FILE", help="the teacher's tokens, a line of JSON each")
    args = parser.parse_args()
    began, retokenizers = time.monotonic(), {}

    def retokenizer_of(line):
        key = line["student_tokenizer"], line["teacher_tokenizer"], tuple(map(tuple, line["token_pairs"]))
        if key not in retokenizers:
            retokenizers[key] = Retokenizer(*key)
        return retokenizers[key]

    with open(args.completions, encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    try:
        work = [(retokenizer_of(line), line) for line in lines]
    except InputError as error:
        fail(str(error))
    unusable = 0
    with open(args.output, "w", encoding="utf-8") as output, ThreadPoolExecutor() as pool:
        for made in pool.map(lambda one: answer(*one), work):
            unusable += "error" in made
            output.write(json.dumps(made) + "\n")
    seconds = time.monotonic() - began
    print(f"{len(lines)} completions in the teacher's tokens in {seconds:.1f} s, {unusable} not possible", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
