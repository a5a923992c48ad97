"""The ids of random tokenizers and texts are those that transformers' AutoTokenizer gives for the same folder.

`python tests/data/test_random_tokenizers.py --tokenizers 5000 --texts 20 --seed 1` compares more of them.
"""

import argparse
import logging
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from random_tokenizers import Draw

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts"))

from token_shards.errors import InputError
from token_shards.piece_cache import PieceCache
from token_shards.special_ids import added_around
from token_shards.tokenizer_files import TokenizerFiles
from token_shards.transformers_tokenizer import TRUSTING_MODEL_TYPES, takes_whole_file

# What is refused although transformers loads it: `distill` reads the files alone, and the ids must not be random.
REFUSED = ("with other tokens than its files have", "an id for each", "differ after normalization", "leaves something")


def reference(folder):
    """transformers' tokenizer of the folder, or the error that it raises."""
    from transformers import AutoTokenizer

    logging.getLogger("transformers").setLevel(logging.CRITICAL)
    try:
        return AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:  # whatever the code of a tokenizer's class raises
        return error


def difference(folder, texts):
    """(what became of the folder, the first text whose ids differ with both or None)"""
    theirs = reference(folder)
    try:
        files = TokenizerFiles.load(folder)
        tokenizer = files.tokenizer()
        before, after = added_around(tokenizer, files.file)
    except InputError as error:
        if isinstance(theirs, Exception):
            return "transformers cannot load it", None
        for reason in REFUSED:
            if reason in str(error):
                return f"refused: {reason}", None
        return "refused", (str(error), None, None)
    if isinstance(theirs, Exception):
        # An object without `__type` is a token for distill.
        return "transformers alone cannot load it", None if takes_whole_file(folder) else (repr(theirs), None, None)
    ours = PieceCache.of(tokenizer).encode(texts)
    for text, ids in zip(texts, ours):
        wanted = theirs(text).input_ids
        whole = [*before, *ids.tolist(), *after]
        if whole != wanted or ids.tolist() != theirs(text, add_special_tokens=False).input_ids:
            return "different", (text, whole, wanted)
    named = {key: value for key, value in theirs.special_tokens_map.items() if isinstance(value, str) and value}
    if named != files.special_tokens:
        return "different", ("special_tokens_map", files.special_tokens, named)
    return f"equal, {'as the file says' if takes_whole_file(folder) else 'loaded by transformers'}", None


def compare(tokenizers, texts, seed, folder):
    """(Counter of what became of the folders, [what differs])"""
    counts, found = Counter(), []
    for number in range(tokenizers):
        draw = Draw(f"{seed} {number}")
        draw.folder(folder)
        outcome, differs = difference(folder, [draw.text() for _ in range(texts)])
        counts[outcome] += 1
        if differs:
            found.append((number, outcome, *differs))
        shutil.rmtree(folder)
    return counts, found


def test_random_tokenizers_give_the_ids_of_transformers(tmp_path):
    counts, found = compare(100, 10, 0, tmp_path / "tokenizer")
    assert not found, found[:3]
    assert counts["equal, as the file says"] > 50 and counts["equal, loaded by transformers"] > 15, counts


@pytest.mark.parametrize("model_type", [one for one in TRUSTING_MODEL_TYPES if one])
def test_transformers_takes_the_whole_file_with_these_models(tmp_path, model_type):
    import json

    folder = tmp_path / "tokenizer"
    Draw("plain").folder(folder)
    for path in folder.iterdir():
        if path.name != "tokenizer.json":
            path.unlink()
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    assert takes_whole_file(folder)
    assert type(reference(folder)).__name__ == "TokenizersBackend"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizers", type=int, default=5000, metavar="N")
    parser.add_argument("--texts", type=int, default=20, metavar="N", help="for each tokenizer")
    parser.add_argument("--seed", default="1")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        counts, found = compare(args.tokenizers, args.texts, args.seed, Path(folder) / "tokenizer")
    for outcome, count in counts.most_common():
        print(f"{count:8} {outcome}")
    for one in found[:20]:
        print(*map(repr, one))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
