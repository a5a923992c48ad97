#!/usr/bin/env python3
r"""Tokenises text into token shards, the training files of `distill` (docs/data.md describes the format).

  scripts/tokenize.py --tokenizer MODEL_FOLDER --output data/train corpus.jsonl
  scripts/tokenize.py --tokenizer MODEL_FOLDER --output data/train --eval-output data/eval \
      --eval-fraction 0.01 --include '*.py' src/

Inputs are files, folders and glob patterns:
  text      one document per file (--split-blank-lines: one per paragraph)
  JSONL     one document per line: {"text": ...}, or {"messages": [...]} for the chat template, where only the
            assistant's tokens have a loss; .gz files are read too
  parquet   a column of texts or of messages

The output does not depend on the number of workers. All shards appear together at the end, or none.
"""

import os
import sys

sys.path.append(os.path.dirname(os.path.abspath(__file__)))  # missing under `python -m` and PYTHONSAFEPATH

import script_path

import hashlib
import heapq
import multiprocessing
import shutil
import signal
import time
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from shared.command_line import argument_parser
from token_shards import encode
from token_shards.inputs import InputError, Reader, find_files
from token_shards.shard_file import ShardFolder, ShardSpec
from token_shards.tokenizer_files import TokenizerFiles

CHUNK_ITEMS = 128
CHUNK_BYTES = 1 << 20


def arguments(argv):
    parser = argument_parser(__doc__, prog="tokenize.py")
    add = parser.add_argument
    add("inputs", nargs="+", metavar="INPUT", help="file, folder or glob pattern")
    add("--tokenizer", required=True, metavar="PATH", help="model folder, or its tokenizer.json")
    add("--output", required=True, metavar="FOLDER", help="for the shards (shard-00000.dtok, ...)")
    add("--overwrite", action="store_true", help="replace the shards in the output folders")
    add("--format", choices=["auto", "text", "jsonl", "parquet"], default="auto", help="auto: by the file's name")
    add(
        "--include",
        action="append",
        default=[],
        metavar="PATTERN",
        help="names to take from folders; repeatable (default: *.txt *.md *.jsonl *.jsonl.gz *.parquet)",
    )
    add("--exclude", action="append", default=[], metavar="PATTERN", help="names or paths to leave out; repeatable")
    add("--text-key", default="text", metavar="NAME", help="JSONL key or parquet column (default: text)")
    add("--messages-key", default="messages", metavar="NAME", help="the same for conversations (default: messages)")
    add("--split-blank-lines", action="store_true", help="text files: a document for each paragraph")
    add(
        "--bos",
        choices=["auto", "always", "never"],
        default="auto",
        help="begin-of-text token before text documents (auto: where the tokenizer adds it itself)",
    )
    add("--no-eos", action="store_true", help="no end-of-text token after text documents")
    add("--eos-token", metavar="TOKEN", help="the end-of-text token (default: the tokenizer's eos_token)")
    add("--chat-template", metavar="FILE", help="Jinja template (default: the tokenizer's)")
    add("--loss-on", choices=["assistant", "all"], default="assistant", help="conversations: tokens with loss")
    add("--eval-output", metavar="FOLDER", help="for the held-out documents")
    held_out = parser.add_mutually_exclusive_group()
    held_out.add_argument("--eval-fraction", type=float, metavar="F", help="hold out this share of the documents")
    held_out.add_argument("--eval-tokens", type=int, metavar="N", help="hold out documents of at least N tokens in all")
    add("--seed", type=int, default=0, help="of the choice of held-out documents")
    add("--shard-tokens", type=int, default=100_000_000, metavar="N", help="tokens in a shard (default: 100 million)")
    add("--workers", type=int, default=os.cpu_count(), metavar="N", help="processes (default: one for each CPU)")
    add("--skip-bad", action="store_true", help="leave out documents that cannot be read, and count them")
    add("--quiet", action="store_true", help="no progress")
    args = parser.parse_args(argv)
    if (args.eval_fraction is None and args.eval_tokens is None) != (args.eval_output is None):
        parser.error("--eval-output goes with --eval-fraction or --eval-tokens")
    if args.eval_fraction is not None and not 0 < args.eval_fraction < 1:
        parser.error(f"--eval-fraction: expected a share between 0 and 1, found {args.eval_fraction}")
    for name, least in (("eval_tokens", 1), ("shard_tokens", 1), ("workers", 1)):
        value = getattr(args, name)
        if value is not None and value < least:
            parser.error(f"--{name.replace('_', '-')}: expected at least {least}, found {value}")
    if args.eval_output and os.path.realpath(args.eval_output) == os.path.realpath(args.output):
        parser.error("--output and --eval-output: expected two folders, found one")
    return args


def special_ids(args, files):
    """(ids before a document, ids after it, bos_id and eos_id for the header)"""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(files.file))
    except Exception as error:  # the library raises plain Exception
        raise InputError(f"{files.file}: cannot be loaded: {error}") from error

    def token_id(token, what):
        index = tokenizer.token_to_id(token)
        if index is None:
            raise InputError(f"{files.file}: {what}: no such token: {token}")
        return index

    bos_token = files.special_tokens.get("bos_token")
    bos = []
    if args.bos == "always":
        if bos_token is None:
            raise InputError(f"{files.file.parent}: --bos always: tokenizer_config.json names no bos_token")
        bos = [token_id(bos_token, "bos_token")]
    elif args.bos == "auto":
        plain = tokenizer.encode("a", add_special_tokens=False).ids
        special = tokenizer.encode("a", add_special_tokens=True).ids
        starts = [i for i in range(len(special) - len(plain) + 1) if special[i : i + len(plain)] == plain]
        bos = special[: starts[0]] if starts else []
    eos_token = args.eos_token or files.special_tokens.get("eos_token")
    eos_id = token_id(eos_token, "--eos-token" if args.eos_token else "eos_token") if eos_token else files.eos_id
    if eos_id is None and not args.no_eos:
        raise InputError(
            f"{files.file.parent}: no end-of-text token: expected eos_token in tokenizer_config.json or "
            "eos_token_id in config.json, found neither (--eos-token TOKEN or --no-eos)"
        )
    bos_id = tokenizer.token_to_id(bos_token) if bos_token else None
    return bos, [] if args.no_eos else [eos_id], -1 if bos_id is None else bos_id, -1 if eos_id is None else eos_id


def chunks(items):
    chunk, size = [], 0
    for item in items:
        chunk.append(item)
        size += len(item.value) if isinstance(item.value, (str, bytes)) else 1000
        if len(chunk) >= CHUNK_ITEMS or size >= CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def encoded(reader, options, workers):
    """Encoded chunks in the order of the input; at most a few are in flight."""
    if workers == 1:
        encoder = encode.Encoder(options)
        for chunk in chunks(reader):
            yield encoder.encode(chunk)
        return
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one thread in each worker
    # fork: a fresh interpreter might start in this folder and import this file as `tokenize`.
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(workers, context, encode.start_worker, (options,)) as pool:
        pending = deque([pool.submit(encode.encode_chunk, [])])  # starts all workers before any file is open
        try:
            for chunk in chunks(reader):
                pending.append(pool.submit(encode.encode_chunk, chunk))
                if len(pending) > 3 * workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        except BrokenProcessPool as error:
            raise InputError("a worker process died (out of memory?): try fewer --workers") from error
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


class Split:
    """Sends each document to training or to the held-out set, by a hash of its number in the input."""

    def __init__(self, args, train, held_out):
        self.args, self.train, self.held_out = args, train, held_out
        self.count = 0
        self.chosen = []  # heap, the largest hash first: the documents with the smallest hashes, at least eval_tokens
        self.chosen_tokens = 0

    def add(self, tokens, in_loss):
        index, self.count = self.count, self.count + 1
        if self.held_out is None:
            self.train.add(tokens, in_loss)
            return
        key = hashlib.blake2b(f"{self.args.seed}:{index}".encode(), digest_size=8).digest()
        key = int.from_bytes(key, "little")
        if self.args.eval_fraction is not None:
            (self.held_out if key < self.args.eval_fraction * 2**64 else self.train).add(tokens, in_loss)
            return
        heapq.heappush(self.chosen, (-key, index, tokens, in_loss))
        self.chosen_tokens += len(tokens)
        while self.chosen_tokens - len(self.chosen[0][2]) >= self.args.eval_tokens:
            _, _, tokens, in_loss = heapq.heappop(self.chosen)
            self.chosen_tokens -= len(tokens)
            self.train.add(tokens, in_loss)

    def finish(self):
        for _, _, tokens, in_loss in sorted(self.chosen, key=lambda entry: entry[1]):
            self.held_out.add(tokens, in_loss)


def duration(seconds):
    """1:02:03 or 2:03; - for None."""
    if seconds is None:
        return "-"
    hours, minutes = seconds // 3600, seconds // 60 % 60
    return f"{hours}:{minutes:02}:{seconds % 60:02}" if hours else f"{minutes}:{seconds % 60:02}"


class Progress:
    def __init__(self, quiet):
        self.quiet, self.start, self.last = quiet, time.monotonic(), time.monotonic()
        # A terminal that cannot rewrite a line gets lines, as in distill itself.
        self.terminal = sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"

    def show(self, reader, documents, tokens, *, final=False):
        now = time.monotonic()
        if self.quiet or (not final and now - self.last < (0.5 if self.terminal else 10)):
            return
        self.last = now
        share = 1 if final else min(1, reader.bytes_read / max(reader.bytes_total, 1))
        seconds = max(now - self.start, 1e-3)
        left = round(seconds * (1 - share) / share) if share > 0 else None
        line = f"{100 * share:5.1f} %  {tokens / seconds:,.0f} tokens/s  eta {duration(left)}"
        line += f"  {documents:,} documents  {tokens:,} tokens"
        if self.terminal:
            line = line[: shutil.get_terminal_size().columns - 1]
        print(
            f"\r{line}\033[K" if self.terminal else line,
            end="\n" if final or not self.terminal else "",
            file=sys.stderr,
            flush=True,
        )


def tokenise(args, outputs):
    files = TokenizerFiles.load(args.tokenizer)
    bos, eos, bos_id, eos_id = special_ids(args, files)
    template = files.chat_template
    if args.chat_template:
        with open(args.chat_template, encoding="utf-8") as file:
            template = file.read()
    options = encode.EncodeOptions(
        tokenizer_file=str(files.file),
        bos_ids=tuple(bos),
        eos_ids=tuple(eos),
        special_tokens=files.special_tokens,
        chat_template=template,
        loss_on=args.loss_on,
        text_key=args.text_key,
        messages_key=args.messages_key,
        skip_bad=args.skip_bad,
    )
    reader = Reader(find_files(args.inputs, args.include, args.exclude), args)
    spec = ShardSpec(files.vocab_size, files.hash, bos_id, eos_id)
    for folder in (args.output, args.eval_output):
        if folder:
            outputs.append(ShardFolder(folder, spec, args.shard_tokens, args.overwrite))
    split = Split(args, outputs[0], outputs[1] if args.eval_output else None)
    progress = Progress(args.quiet)
    empty = no_assistant = 0
    bad = []
    tokens_done = 0
    for chunk in encoded(reader, options, args.workers):
        at = 0
        for length, in_loss in zip(chunk.lengths, chunk.in_loss):
            split.add(chunk.tokens[at : at + length], in_loss)
            at += length
        tokens_done += at
        empty, no_assistant, bad = empty + chunk.empty, no_assistant + chunk.no_assistant, bad + chunk.bad
        progress.show(reader, split.count, tokens_done)
    split.finish()
    progress.show(reader, split.count, tokens_done, final=True)
    for output in outputs:
        output.flush()
        if not output.documents:
            raise InputError(
                f"{output.folder}: no document came to this output: the input has {split.count} documents "
                f"with tokens ({empty} empty, {no_assistant} without an assistant's token, {len(bad)} bad)"
            )
    for output in outputs:
        names = output.finish()
        print(
            f"{output.folder}: {len(names)} shard{'s' * (len(names) > 1)}, {output.documents:,} documents, "
            f"{output.tokens:,} tokens, {output.tokens_in_loss:,} of them with loss"
        )
    for count, what in (
        (empty, "empty documents"),
        (no_assistant, "conversations without an assistant's token"),
        (len(bad), "bad documents"),
    ):
        if count:
            print(f"left out: {count:,} {what}")
    for message in bad[:5]:
        print(f"  {message}")


def main(argv=None):
    args = arguments(argv)
    outputs = []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # through `finally`
    try:
        tokenise(args, outputs)
        return 0
    except (InputError, OSError, ValueError) as error:
        print(f"tokenize.py: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("tokenize.py: interrupted", file=sys.stderr)
        return 130
    finally:
        for output in outputs:
            output.abort()  # only what has not been finished


if __name__ == "__main__":
    sys.exit(main())
