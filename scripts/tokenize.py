#!/usr/bin/env python3
r"""Converts texts and conversations into token shards, the training files of `distill` (docs/tokenize.md).

  scripts/tokenize.py --tokenizer MODEL_FOLDER --output data/train corpus.jsonl
  scripts/tokenize.py --tokenizer MODEL_FOLDER --output data/train --eval-output data/eval \
      --eval-fraction 0.01 --include '*.py' src/
  zcat corpus.jsonl.gz | scripts/tokenize.py --tokenizer MODEL_FOLDER --output data/train -

Inputs are files, folders, glob patterns, or - for standard input:
  text       one document per file (--split-blank-lines: one per paragraph)
  JSONL      one record per line; .json: an array of records
  CSV, TSV   one record per row; the first row names the columns
  parquet    one record per row
All but parquet may be compressed with gzip or zstandard.

The keys of a record tell its format (--records names one):
FORMATS

Records with teacher_prompt or teacher_messages give the teacher another text before the same completion. The key
teacher names the record's teacher.

Keys that say what is to be learned (weight, train, loss of a message; a loss_mask beside the messages) are followed.
What a conversion did not use is listed at its end: keys of records and messages, columns of tables.

The output does not depend on the number of workers. All shards appear together at the end, or none. The same command
continues a conversion that was interrupted.
"""

import os
import sys

sys.path.append(os.path.dirname(os.path.abspath(__file__)))  # missing under `python -m` and PYTHONSAFEPATH

import script_path

import argparse
import dataclasses
import signal

from shared.command_line import argument_parser
from token_shards.bad_documents import DEFAULT, Limit
from token_shards.chat import ChatOptions, add_chat_arguments, check_template_arguments
from token_shards.chat_render import names_variable
from token_shards.convert import Conversion
from token_shards.encode import EncodeOptions, chat_encoder
from token_shards.errors import InputError, Unfinished
from token_shards.file_kinds import EXTENSIONS, KINDS, STDIN
from token_shards.inputs import find_files
from token_shards.job import describe_job
from token_shards.readers import Reader
from token_shards.record_formats import FORMAT_NAMES, formats
from token_shards.records import RecordReader
from token_shards.shard_file import ShardSpec
from token_shards.shard_folder import ShardFolder
from token_shards.special_ids import special_ids
from token_shards.template_files import ChatTemplates
from token_shards.tokenizer_files import TokenizerFiles
from token_shards.two_tokenizers import TokenBytes, TwoTokenizers
from token_shards.unused_options import unused_option_lines


def _one_character(text):
    text = {"\\t": "\t"}.get(text, text)
    if len(text) != 1 or text in '\r\n"':
        raise argparse.ArgumentTypeError(f"expected one character, found {text!r}")
    return text


def arguments(argv):
    described = "\n".join(f"  {one.name:18}{one.needs_text()}" for one in formats())
    parser = argument_parser(__doc__.replace("FORMATS", described), prog="tokenize.py")
    add = parser.add_argument
    names = [name for names in EXTENSIONS.values() for name in names]
    add("inputs", nargs="+", metavar="INPUT", help="file, folder, glob pattern, or - (standard input)")
    add("--tokenizer", required=True, metavar="PATH", help="model folder, or its tokenizer.json")
    add("--output", required=True, metavar="FOLDER", help="for the shards (shard-00000.dtok, ...)")
    add(
        "--overwrite",
        action="store_true",
        help="replace the shards in the output folders, and an unfinished conversion of something else",
    )
    add(
        "--format",
        choices=KINDS,
        default="auto",
        help="of the files; auto: by their first bytes and names, JSONL from standard input",
    )
    add(
        "--delimiter",
        type=_one_character,
        metavar="C",
        help="between the cells of CSV and TSV (default: comma, tab)",
    )
    add("--records", choices=["auto", *FORMAT_NAMES], default="auto", help="format of a record; auto: by its keys")
    add(
        "--include",
        action="append",
        default=[],
        metavar="PATTERN",
        help=f"names to take from folders; repeatable (default: {', '.join(names)}, in any case, also with .gz "
        "or .zst; of .json only arrays)",
    )
    add("--exclude", action="append", default=[], metavar="PATTERN", help="names or paths to leave out; repeatable")
    add("--text-key", default="text", metavar="NAME", help="key or column of a text (default: text)")
    add("--messages-key", default="messages", metavar="NAME", help="the same for conversations (default: messages)")
    add(
        "--ignore-key",
        action="append",
        default=[],
        metavar="NAME",
        help="key of records and messages to pass over, where it means something else here than elsewhere; repeatable",
    )
    add("--split-blank-lines", action="store_true", help="text files: a document for each paragraph")
    add(
        "--bos",
        choices=["auto", "always", "never"],
        default="auto",
        help="begin-of-text token before text documents (auto: where the tokenizer adds it itself)",
    )
    add("--no-eos", action="store_true", help="no end-of-text token after text documents")
    add("--eos-token", metavar="TOKEN", help="the end-of-text token (default: the tokenizer's eos_token)")
    add_chat_arguments(parser)
    add(
        "--teacher-tokenizer",
        metavar="PATH",
        help="of a teacher that splits texts in another way, model folder or tokenizer.json: each document is written "
        "in its tokens, too, for teacher.alignment: bytes; conversations with its own chat template",
    )
    add("--teacher-chat-template", metavar="FILE|NAME", help="as --chat-template, of the teacher's tokenizer")
    add("--teacher-eos-token", metavar="TOKEN", help="as --eos-token, of the teacher's tokenizer")
    add(
        "--part-tokens",
        type=int,
        metavar="N",
        help="with --teacher-tokenizer: divide texts of more than N tokens, in one of the two tokenizers, where both "
        "have a token boundary; a run cuts off what is longer than its sequences",
    )
    add(
        "--prompts",
        action="store_true",
        help="for onpolicy.prompts: of each record what a model is to continue, without any loss: a conversation up to "
        "the last answer, with the generation prompt; a prompt without its completion; a text as a whole, without an "
        "end-of-text token",
    )
    add("--eval-output", metavar="FOLDER", help="for the held-out documents")
    held_out = parser.add_mutually_exclusive_group()
    held_out.add_argument("--eval-fraction", type=float, metavar="F", help="hold out this share of the documents")
    held_out.add_argument("--eval-tokens", type=int, metavar="N", help="hold out documents of at least N tokens in all")
    add("--seed", type=int, default=0, help="of the choice of held-out documents")
    add("--shard-tokens", type=int, default=100_000_000, metavar="N", help="tokens in a shard (default: 100 million)")
    add("--workers", type=int, default=os.cpu_count(), metavar="N", help="processes (default: one for each CPU)")
    add(
        "--max-bad",
        type=Limit.parse,
        default=DEFAULT,
        metavar="N|P%",
        help="an error if more than N documents, or more than P percent, are bad; bad documents are left out and "
        f"counted; 0: the first one is an error (default: {DEFAULT}, whichever is more)".replace("%", "%%"),
    )
    add("--quiet", action="store_true", help="no progress")
    args = parser.parse_args(argv)
    if (args.eval_fraction is None and args.eval_tokens is None) != (args.eval_output is None):
        parser.error("--eval-output goes with --eval-fraction or --eval-tokens")
    if args.eval_fraction is not None and not 0 < args.eval_fraction < 1:
        parser.error(f"--eval-fraction: expected a share between 0 and 1, found {args.eval_fraction}")
    if STDIN in args.inputs and len(args.inputs) > 1:
        parser.error(f"{STDIN} (standard input) cannot be read together with files")
    for name in ("teacher_chat_template", "teacher_eos_token", "part_tokens"):
        if getattr(args, name) is not None and args.teacher_tokenizer is None:
            parser.error(f"--{name.replace('_', '-')} goes with --teacher-tokenizer")
    for name, least in (("eval_tokens", 1), ("shard_tokens", 1), ("workers", 1), ("part_tokens", 2)):
        value = getattr(args, name)
        if value is not None and value < least:
            parser.error(f"--{name.replace('_', '-')}: expected at least {least}, found {value}")
    names = [name for name, _ in args.template_arg]
    if len(set(names)) < len(names):
        parser.error(f"--template-arg: expected each name once, found {', '.join(names)}")
    for name in ("output", "eval_output"):
        if (getattr(args, name) or "").startswith("~"):
            parser.error(
                f"--{name.replace('_', '-')}: expected a folder, found {getattr(args, name)}: ~ is not expanded"
            )
    if args.eval_output and os.path.realpath(args.eval_output) == os.path.realpath(args.output):
        parser.error("--output and --eval-output: expected two folders, found one")
    return args


def encode_options(args, files, is_teacher=False):
    """(EncodeOptions, bos_id and eos_id for the header). A teacher gets the arguments of --template-arg that its
    templates name."""
    tokenizer = files.tokenizer()
    bos, eos, bos_id, eos_id = special_ids(args, files, tokenizer)
    templates = ChatTemplates.chosen(files.chat_templates, args.chat_template)
    chat = ChatOptions.from_arguments(args)
    if is_teacher:
        named = [
            one for one in chat.template_args if any(names_variable(text, one[0]) for text in templates.texts.values())
        ]
        chat = dataclasses.replace(chat, template_args=tuple(named))
    check_template_arguments(chat, list(templates.texts.values()))
    options = EncodeOptions(
        tokenizer=tokenizer,
        vocab_size=files.vocab_size,
        bos_ids=tuple(bos),
        eos_ids=tuple(eos),
        special_tokens=files.special_tokens,
        chat_templates=templates,
        chat=chat,
        records=args.records,
        text_key=args.text_key,
        messages_key=args.messages_key,
        ignored_keys=tuple(args.ignore_key),
        prompts=args.prompts,
    )
    return options, bos_id, eos_id


def with_teacher(args, files, options):
    """(the options with those of the teacher's tokenizer, the teacher's TokenizerFiles)"""
    its_args = argparse.Namespace(**vars(args))
    its_args.chat_template, its_args.eos_token = args.teacher_chat_template, args.teacher_eos_token
    its_files = TokenizerFiles.load(args.teacher_tokenizer)
    if its_files.hash == files.hash:
        raise InputError(
            f"--teacher-tokenizer {args.teacher_tokenizer}: expected a tokenizer that splits texts in another way than "
            f"{args.tokenizer}, found the same; leave the option out"
        )
    its = encode_options(its_args, its_files, is_teacher=True)[0]
    both = TwoTokenizers(
        TokenBytes(options.tokenizer, files.file), TokenBytes(its.tokenizer, its_files.file), args.part_tokens
    )
    return dataclasses.replace(options, teacher=its, two_tokenizers=both), its_files


def check_templates(options):
    """InputError: one of the chat templates is none, or the arguments are for none of them."""
    templates = options.chat_templates
    for name in [templates.always] if templates.always else list(templates.texts) or [None]:
        chat_encoder(options, name)


def tokenise(args, outputs, started):
    """`outputs` and `started` are filled with the folders and the Conversion, so that the caller can end them."""
    files = TokenizerFiles.load(args.tokenizer)
    options, bos_id, eos_id = encode_options(args, files)
    spec = ShardSpec(files.vocab_size, files.hash, bos_id, eos_id)
    its_files = None
    if args.teacher_tokenizer:
        options, its_files = with_teacher(args, files, options)
        spec = dataclasses.replace(spec, teacher_vocab_size=its_files.vocab_size, teacher_tokenizer_hash=its_files.hash)
    for note in files.notes + (its_files.notes if its_files else []):
        print(f"tokenize.py: warning: {note}", file=sys.stderr)
    if args.chat_template or args.template_arg:
        check_templates(options)
    inputs, of_no_use = find_files(args.inputs, args.include, args.exclude)
    reader = Reader(inputs, args, RecordReader(args.records, args.text_key, args.messages_key, args.ignore_key))
    reader.check_tables()
    for folder in (args.output, args.eval_output):
        if folder:
            outputs.append(ShardFolder(folder, spec, args.shard_tokens, args.overwrite))
    conversion = Conversion(args, reader, options, outputs, describe_job(args, inputs, options))
    started.append(conversion)
    names = conversion.run()
    tally = conversion.tally
    for name in sorted(tally.templates):
        encoder = chat_encoder(options, name, options.tokenizer)
        print(encoder.description)
        for token_id in encoder.turn_end_ids():
            remedy = "Add it to those of the student's folder"
            for note in files.ends.note("turns end in the chat template", token_id, options.tokenizer, remedy):
                print(f"tokenize.py: warning: {note}", file=sys.stderr)
    print("records: " + ", ".join(f"{count:,} {name}" for name, count in sorted(tally.formats.items())))
    for output, shards in zip(outputs, names):
        teacher = f", {output.teacher_tokens:,} more that the teacher reads" if output.teacher_tokens else ""
        print(
            f"{output.folder}: {len(shards)} shard{'s' * (len(shards) > 1)}, {output.documents:,} documents, "
            f"{output.tokens:,} tokens, {output.tokens_in_loss:,} of them with loss{teacher}"
        )
    if conversion.progress is not None:
        speed = conversion.progress.tokens_per_second(conversion.tokens())
        processes = f"{args.workers} process{'es' * (args.workers > 1)}"
        print(f"{conversion.progress.seconds():.1f} s, {speed:,.0f} tokens/s with {processes}")
    for line in (*tally.lines(args.max_bad), *of_no_use, *unused_option_lines(args, reader.kinds, tally)):
        print(line)


def main(argv=None):
    args = arguments(argv)
    outputs, started = [], []
    keep = False  # the unfinished work, which the same command continues
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # through `finally`
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # keys and texts of the input may be any characters
    try:
        tokenise(args, outputs, started)
        return 0
    except Unfinished as error:
        keep = True
        print(f"tokenize.py: error: {error}", file=sys.stderr)
        return 1
    except (InputError, ValueError) as error:
        print(f"tokenize.py: error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        keep = can_continue(started)
        # The system does not name a file that was open already, as where a disk is full.
        place = f"{args.output}: " if error.errno is not None and not error.filename else ""
        print(f"tokenize.py: error: {place}{error}{how_to_continue(keep)}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, SystemExit) as error:
        keep = can_continue(started)
        hint = how_to_continue(keep) or (" (standard input cannot be continued)" if STDIN in args.inputs else "")
        print(f"\ntokenize.py: interrupted{hint}", file=sys.stderr)
        return 130 if isinstance(error, KeyboardInterrupt) else error.code
    finally:
        for output in reversed(outputs):  # the journal is in the first one
            output.close(keep=keep)


def can_continue(started):
    return any(conversion.has_work() for conversion in started)


def how_to_continue(keep):
    return "; the same command continues" if keep else ""


if __name__ == "__main__":
    sys.exit(main())
