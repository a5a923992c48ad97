#!/usr/bin/env python3
"""Measures scripts/tokenize.py against datasets.map on the same texts and the same cores, one after the other in turn.

  scripts/benches/bench_tokenize.py --tokenizer work/quickstart/teacher --mb 60 --rounds 3

The texts are real ones, sources of Python's standard library and of torch (scripts/collect_text.py), repeated with
other words in between until there are as many megabytes as asked for; or --input FILE. scripts/tokenize.py is measured
as a user runs it: start of Python, reading of JSONL, tokens, shards on the disk. datasets.map is measured alone: its
data set has been read before, and the tokens go to its cache on the disk. Neither adds a token to a text.
"""

import script_path

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from collect_text import library_roots, read_documents
from shared.command_line import argument_parser, fail
from token_shards import shard_file

SCRIPT = Path(__file__).resolve().parent / "tokenize.py"


def arguments():
    parser = argument_parser(__doc__)
    add = parser.add_argument
    add("--tokenizer", required=True, metavar="FOLDER", help="model folder with tokenizer.json")
    add("--input", metavar="FILE", help="JSONL with a text in each line, in place of the library's sources")
    add("--mb", type=float, default=60, help="megabytes of text (default: 60)")
    add("--rounds", type=int, default=3, help="measurements of each (default: 3)")
    add("--processes", type=int, default=os.cpu_count(), help="of both (default: one for each CPU)")
    add("--batch-size", type=int, default=1000, help="of datasets.map (default: 1000, its own)")
    add("--once", choices=["map"], help=argparse.SUPPRESS)  # one measurement, in a process of its own
    add("--folder", help=argparse.SUPPRESS)
    return parser.parse_args()


def write_texts(path, megabytes):
    """Documents until there are `megabytes` of them. A repetition differs in its names, as files of a project do."""
    documents, _ = read_documents(library_roots())
    size = repetition = 0
    with path.open("w", encoding="utf-8") as file:
        while size < megabytes * 1e6:
            for source, text in documents:
                if repetition:
                    text = re.sub(r"\b([a-z]+)_([a-z]+)\b", rf"\g<1>_\g<2>_v{repetition}", text)
                file.write(json.dumps({"text": text, "source": source}) + "\n")
                size += len(text.encode())
                if size >= megabytes * 1e6:
                    break
            repetition += 1
    return size


def map_once(args):
    """Prints the seconds and tokens of one datasets.map."""
    import datasets
    import pyarrow.compute
    from transformers import AutoTokenizer

    datasets.disable_progress_bars()
    folder = Path(args.folder)
    tokenizer = AutoTokenizer.from_pretrained(args.tokenizer)
    data = datasets.load_dataset("json", data_files=args.input, split="train", cache_dir=str(folder / "cache"))
    tokenizer.model_max_length = int(1e30)  # no warnings of long texts
    begin = time.perf_counter()
    out = data.map(
        lambda batch: tokenizer(batch["text"]),
        batched=True,
        batch_size=args.batch_size,
        num_proc=args.processes,
        remove_columns=data.column_names,
        load_from_cache_file=False,
    )
    seconds = time.perf_counter() - begin
    lengths = pyarrow.compute.list_value_length(out.with_format("arrow")[:]["input_ids"])
    tokens = pyarrow.compute.sum(lengths).as_py()
    print(json.dumps({"seconds": seconds, "tokens": tokens}))


def measured_map(args, source, folder):
    command = [sys.executable, __file__, "--once", "map", "--folder", folder, "--input", source]
    command += ["--tokenizer", args.tokenizer, "--processes", args.processes, "--batch-size", args.batch_size]
    result = subprocess.run(list(map(str, command)), check=True, stdout=subprocess.PIPE, text=True)
    line = json.loads(result.stdout.splitlines()[-1])
    return line["seconds"], line["tokens"]


def measured_script(args, source, folder):
    out = folder / "shards"
    command = [sys.executable, SCRIPT, "--tokenizer", args.tokenizer, "--output", out, "--quiet", "--no-eos"]
    command += ["--workers", args.processes, "--overwrite", source]
    begin = time.perf_counter()
    subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL)
    seconds = time.perf_counter() - begin
    headers = [shard_file.read(path)[0] for path in sorted(out.glob(f"*{shard_file.EXTENSION}"))]
    return seconds, sum(header["token_count"] for header in headers)


def main():
    args = arguments()
    if args.once:
        map_once(args)
        return
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        source = Path(args.input) if args.input else folder / "texts.jsonl"
        size = source.stat().st_size if args.input else write_texts(source, args.mb)
        print(f"{size / 1e6:.1f} MB of text, {args.processes} processes, tokenizer {args.tokenizer}")
        kinds = {"tokenize.py": measured_script, "datasets.map": measured_map}
        speeds, counts = {name: [] for name in kinds}, set()
        for turn in range(args.rounds):
            for name, measure in kinds.items():
                seconds, tokens = measure(args, source, folder)
                speeds[name].append(tokens / seconds)
                counts.add(tokens)
                print(
                    f"round {turn + 1}  {name:12} {seconds:6.1f} s  {tokens:,} tokens  {tokens / seconds:,.0f} tokens/s"
                )
        if len(counts) > 1:
            fail(f"expected one number of tokens from all, found {sorted(counts)}")
        medians = {name: statistics.median(values) for name, values in speeds.items()}
        for name, value in medians.items():
            print(f"median   {name:12} {value:,.0f} tokens/s  {size / 1e6 * value / tokens:.1f} MB/s")
        print(f"ratio    {medians['tokenize.py'] / medians['datasets.map']:.2f}")


if __name__ == "__main__":
    main()
