#!/usr/bin/env python3
"""Rebuilds the setting of "Baby Llama" (Timiryasov and Tastet 2023, arXiv 2308.02019) as far as it can be had.

  scripts/studies/baby_llama.py corpus --clones CLONES --output work/baby_llama/corpus
  scripts/studies/baby_llama.py data --corpus work/baby_llama/corpus --clones CLONES --output work/baby_llama/inputs
  scripts/studies/baby_llama.py run --profile gpu --program build/release/apps/distill/distill
  scripts/studies/baby_llama.py blimp
  scripts/studies/baby_llama.py table

A Llama of 58 million parameters is trained on 10 million words with labels only, and with a teacher of 360 million that
has read the same words; both by their cross-entropy on development texts and by BLiMP. docs/published.md says what is
the published setting, what differs, and what came out.

CLONES is a folder with clones of the repositories that `corpus` names, in folders OWNER+NAME. `data` takes the ten
files of the challenge just as well: --corpus with train/DOMAIN.train and dev/DOMAIN.dev. What is done is not done
again: the same command continues. `corpus` needs git, `data` tokenizers and numpy, `blimp` torch and transformers.
"""

import script_path

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from baby_llama import corpus, data, report
from baby_llama.profiles import PROFILES
from baby_llama.runs import Study
from shared.command_line import argument_parser, at_least, fail
from shared.runs import RunFailed


def make_corpus(args):
    counts = corpus.make(args.clones, args.output)
    (args.output / "words.json").write_text(json.dumps(counts, indent=1))
    for name, count in sorted(counts.items()):
        print(f"{name:24} {count:9} words")


def make_data(args):
    tokenizer = args.tokenizer
    args.output.mkdir(parents=True, exist_ok=True)
    if args.published_tokenizer:
        tokenizer = args.output / "published-tokenizer.json"
        clone = corpus.Clone(args.clones, "MShelUR/Perplexed-BabyLlama")
        tokenizer.write_bytes(clone.bytes("models/gpt-clean-16000.json"))
    data.make_tokens(args.corpus, args.output, tokenizer, PROFILES[args.profile].vocabulary)
    pairs = data.make_pairs(args.clones, args.output)
    print(f"{args.output}: {len(pairs)} pairs, {sum(pair['kept'] for pair in pairs)} of them kept by the challenge")


def devices_of(args):
    if PROFILES[args.profile].device == "cpu":
        return [""]
    from shared.gpus import visible_gpus

    found = visible_gpus()
    return found[: args.devices or len(found)]


def run(args):
    study = Study(args, devices_of(args))
    try:
        done = study.run()
    except RunFailed as error:
        fail(str(error))
    print("all is trained" if done else "the time is over; the same command continues")
    report.write(args.work, args.profile)


def blimp(args):
    import torch

    from baby_llama import pairs

    args.work.joinpath("blimp").mkdir(parents=True, exist_ok=True)
    names = [path.stem for path in sorted((args.work / "results").glob("*.json"))]
    left = [name for name in names if not (args.work / "blimp" / f"{name}.json").exists()]
    read = data.read_pairs(args.inputs / "pairs.jsonl.xz")
    sentences = pairs.prepared(args.inputs / "tokenizer/tokenizer.json", read) if left else {}
    devices = [f"cuda:{one}" for one in range(torch.cuda.device_count())] or ["cpu"]

    def one(index_and_name):
        index, name = index_and_name
        found = pairs.measure(args.work / "runs" / name / "model", read, sentences, devices[index % len(devices)])
        (args.work / "blimp" / f"{name}.json").write_text(json.dumps(found, indent=1))
        print(
            f"{name}: {found['line']['kept']['paradigms']:.2f} % (after a newline), "
            f"{found['mark']['kept']['paradigms']:.2f} % (after </s>)",
            flush=True,
        )

    with ThreadPoolExecutor(len(devices)) as pool:
        list(pool.map(one, enumerate(left)))
    report.write(args.work, args.profile)


def main():
    parser = argument_parser(__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    root, add = Path("work/baby_llama"), {}
    for name, work, text in (
        ("corpus", make_corpus, "makes a corpus like the challenge's from clones"),
        ("data", make_data, "cleans it, and makes the tokenizer, token shards and BLiMP's pairs"),
        ("run", run, "trains and measures the teacher and the students"),
        ("blimp", blimp, "measures what is trained on BLiMP"),
        ("table", lambda args: report.write(args.work, args.profile), "writes table.md and results.json"),
    ):
        command = commands.add_parser(name, help=text)
        command.set_defaults(do=work)
        add[name] = command.add_argument
    for name in ("corpus", "data"):
        add[name]("--clones", type=Path, required=True, help="folder of clones, each in OWNER+NAME")
    add["corpus"]("--output", type=Path, default=root / "corpus")
    add["data"]("--corpus", type=Path, default=root / "corpus", help="folder with train/DOMAIN.train, dev/DOMAIN.dev")
    add["data"]("--output", type=Path, default=root / "inputs")
    add["data"]("--tokenizer", type=Path, help="a tokenizer.json (default: one is trained)")
    add["data"](
        "--published-tokenizer",
        action="store_true",
        help="the one that the clone of MShelUR/Perplexed-BabyLlama has, trained on the whole corpus of 2023",
    )
    for name in ("run", "blimp"):
        add[name]("--inputs", type=Path, default=root / "inputs", help="what `data` has written")
    for name in ("run", "blimp", "table"):
        add[name]("--work", type=Path, default=root / "work", help="folder for everything that is made")
    for name in ("data", "run", "blimp", "table"):
        add[name]("--profile", choices=PROFILES, default="gpu")
    add["run"]("--program", type=Path, required=True, help="distill")
    add["run"]("--jobs", type=at_least(1), default=1, help="students at a time on each GPU")
    add["run"]("--devices", type=at_least(1), help="number of GPUs (default: all); the teacher has all of them")
    add["run"]("--threads", type=at_least(1), default=1, help="processor threads of each run")
    add["run"]("--minutes", type=float, help="ends after this time; runs that work save their state")
    add["run"](
        "--batch",
        type=at_least(1),
        help="sequences in a student's step (default: the published 32); its learning rate grows with the square root",
    )
    args = parser.parse_args()
    args.do(args)


if __name__ == "__main__":
    main()
