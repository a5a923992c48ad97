#!/usr/bin/env python3
"""Makes a teacher's cache from what another program has computed, such as vLLM: hidden states, or top-k.

Hidden states are safetensors files with `token_ids` [T] and `hidden_states` [T, layers, H] or [T, H]
(extract_hidden_states). The last layer is taken. Whether the states are before or after the final norm is measured;
states from before it are normalised.

Top-k log-probabilities are JSONL or parquet files with a document in each record: `token_ids` [T], and
`prompt_logprobs` as vLLM returns it (for each token from the second on, ids with their logprob), or `topk_ids` and
`topk_log_probs` [T][K], and perhaps `tail` [T], the prediction after each token.

The tokens must be those of a document of the token shards, or the beginning of one.

  scripts/import_teacher.py --teacher models/teacher --data data/train --dumps dumps/ --output work/cache

A run then reads them (teacher.source: cache, teacher.cache: work/cache; for top-k cache.kind: topk;
docs/teacher_cache.md).
"""

import script_path  # noqa: I001

from pathlib import Path

from shared.command_line import argument_parser, at_least, fail
from shared.folders import replaced_folder
from teacher_cache.documents import Documents
from teacher_cache.hidden_states import HiddenStates
from teacher_cache.import_topk import TopTokens
from teacher_cache.importer import check_tokenizer
from token_shards.errors import InputError
from token_shards.file_kinds import named_kind

STATES, TOP = ".safetensors", ("jsonl", "parquet")  # an extension, and kinds of files


def parse_arguments():
    parser = argument_parser(__doc__)
    parser.add_argument("--teacher", type=Path, required=True, help="Hugging Face folder of the model that was run")
    parser.add_argument("--tokenizer", type=Path, help="its folder or tokenizer.json (default: the model's folder)")
    parser.add_argument("--data", type=Path, nargs="+", required=True, help="token shards, or folders of them")
    parser.add_argument("--dumps", type=Path, nargs="+", required=True, help="files of the dumps, or folders of them")
    parser.add_argument("--output", type=Path, required=True, help="folder of the cache; it must not exist")
    parser.add_argument(
        "--dtype", help="stored: bfloat16, float32 (default: bfloat16 if all dumps are); top-k: float16, float32"
    )
    parser.add_argument("--allow-missing", action="store_true", help="write the cache though documents have no dump")
    states = parser.add_argument_group("hidden states")
    states.add_argument("--layer", type=int, default=-1, help="of the layers in the dumps (default: the last one)")
    top = parser.add_argument_group("top-k")
    top.add_argument(
        "--topk", type=at_least(1), help="tokens of a row; those beyond join the tail (64, or all if there are fewer)"
    )
    top.add_argument(
        "--vocab-size", type=at_least(1), help="tokens that may be named: the student's, where it has fewer"
    )
    top.add_argument("--temperature", type=float, default=1.0, help="at which they were taken (default 1)")
    top.add_argument("--tail-floor", type=float, default=1e-6, help="least tail where none is given (default 1e-6)")
    return parser.parse_args()


def is_topk(path):
    return named_kind(path) in TOP


def is_dump(path):
    return is_topk(path) or path.suffix.lower() == STATES


def dump_files(paths):
    """(files, whether they are top-k)"""
    files = [
        f for path in paths for f in (sorted(p for p in path.rglob("*") if is_dump(p)) if path.is_dir() else [path])
    ]
    if not files:
        fail(f"{', '.join(map(str, paths))}: expected safetensors, JSONL or parquet files, found none")
    kinds = {is_topk(f) for f in files}
    strange = [f for f in files if not is_dump(f)]
    if strange or len(kinds) > 1:
        found = strange[0] if strange else f"{files[0]} and others"
        fail(f"--dumps: expected safetensors files, or JSONL and parquet files, found {found}")
    return files, kinds == {True}


def check_arguments(arguments, topk):
    if arguments.output.exists():
        fail(f"--output: expected a folder that does not exist, found {arguments.output}")
    dtypes = ("float16", "float32") if topk else ("bfloat16", "float32")
    if arguments.dtype not in (None, *dtypes):
        fail(f"--dtype: expected {' or '.join(dtypes)} for these dumps, found {arguments.dtype}")
    if not (arguments.temperature > 0 and 0 <= arguments.tail_floor < 0.01):
        fail("--temperature, --tail-floor: expected a number above 0, and one from 0 to 0.01")


def main():
    arguments = parse_arguments()
    files, topk = dump_files(arguments.dumps)
    check_arguments(arguments, topk)
    try:
        documents = Documents(arguments.data)
        check_tokenizer(arguments.teacher, arguments.tokenizer, documents)
        importer = (TopTokens if topk else HiddenStates)(arguments, documents, files)
        with replaced_folder(arguments.output) as out:
            importer.write_cache(files, out)
    except (OSError, ValueError, InputError) as error:
        fail(str(error))
    print(f"{arguments.output}: {importer.summary()}")


if __name__ == "__main__":
    main()
