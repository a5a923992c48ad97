"""Import of top-k log-probabilities (teacher_cache/top_tokens.py) into a cache of the kind topk."""

import numpy as np

from shared.command_line import fail
from teacher_cache import folder as cache_folder
from teacher_cache.importer import Importer
from teacher_cache.part_file import Stretch
from teacher_cache.reading import is_integer
from teacher_cache.top_tokens import KEYS, is_vllm, read_predictions, read_records, token_ids
from token_shards.unused_keys import count_unused, unused_lines

VALUES = {"float16": np.dtype("<f2"), "float32": np.dtype("<f4")}


def id_bytes(columns):
    return 2 if columns < 0xFFFF else 3 if columns < 0xFFFFFF else 4


def encode(predictions, chosen, columns, encoding):
    """The rows of the chosen tokens as bytes."""
    if len(chosen) == 0:
        return b""
    ids = predictions.ids[chosen].astype("<i4")
    size = id_bytes(columns)
    parts = [
        np.ascontiguousarray(ids).view(np.uint8).reshape(*ids.shape, 4)[..., :size].reshape(len(ids), -1),
        predictions.log_probs[chosen].astype(VALUES[encoding]).view(np.uint8).reshape(len(ids), -1),
        predictions.tail[chosen].astype("<f4").view(np.uint8).reshape(len(ids), -1),
    ]
    return np.concatenate(parts, axis=1).tobytes()


class TopTokens(Importer):
    def __init__(self, arguments, documents, files):
        super().__init__(arguments, documents)
        vocab = self.config.get("vocab_size")
        if not is_integer(vocab):
            fail(f"{arguments.teacher}/config.json: vocab_size: expected an integer, found {vocab!r}")
        self.columns = arguments.vocab_size or vocab
        if not 1 <= self.columns <= vocab:
            fail(f"--vocab-size: expected 1 to {vocab}, the teacher's tokens, found {self.columns}")
        if arguments.topk is None:
            arguments.topk = min(64, self.columns)
        if not 1 <= arguments.topk <= min(1024, self.columns):
            fail(f"--topk: expected 1 to {min(1024, self.columns)}, found {arguments.topk}")
        self.encoding, self.compute_dtype = arguments.dtype or "float16", "float32"
        self.row_bytes = arguments.topk * (id_bytes(self.columns) + VALUES[self.encoding].itemsize) + 4
        self.short = 0  # rows with fewer than --topk tokens
        self.no_tail = 0  # rows whose tail was given as 0 or less
        self.unused = {}  # keys of the records that are not read
        self.longest, self.computed_tail = self.look_through(files)
        tail = f"computed as 1 - sum, at least {arguments.tail_floor:g}" if self.computed_tail else "given"
        self.precision = f"{self.encoding}, tail {tail}"
        print(f"the tail (the probability of all other tokens) is {tail}")

    def look_through(self, files):
        """(tokens of the longest record, whether some record has no tail)"""
        longest, computed = 2, False
        for path in files:
            for where, record in read_records(path):
                longest = max(longest, len(token_ids(where, record)))
                count_unused(self.unused, [k for k in record if k not in KEYS and record[k] is not None], where)
                computed = computed or is_vllm(record) or record.get("tail") is None
        return longest, computed

    def stretches_of(self, path):
        for where, record in read_records(path):
            tokens = token_ids(where, record)
            # vLLM predicts nothing after the last token of a prompt: its own row, if there is one, is not known.
            found = self.new_documents(tokens, len(tokens) - 1 if is_vllm(record) else None)
            if not found:
                continue
            predictions = read_predictions(where, record, self.columns, self.arguments.topk, self.arguments.tail_floor)
            for document, covered in found:
                chosen = np.flatnonzero(document.targets(covered))
                self.short += int((predictions.ids[chosen] < 0).any(axis=1).sum())
                self.no_tail += int((predictions.tail[chosen] <= 0).sum()) if not predictions.computed_tail else 0
                rows = encode(predictions, chosen, self.columns, self.encoding)
                yield Stretch(document.shard, document.document, 0, covered, rows)

    def manifest_rows(self):
        return {
            "version": cache_folder.SPARSE_VERSION,
            "kind": "topk",
            "encoding": self.encoding,
            "entries": self.arguments.topk,
            "columns": self.columns,
            "temperature": float(self.arguments.temperature),
            "softcap": 0.0,
            "vocab_size": self.config["vocab_size"],
        }

    def write_head(self, out):
        cache_folder.write_head(out, self.arguments.teacher, {}, self.arguments.tokenizer)

    def report(self):
        for line in unused_lines(self.unused):
            print(line)
        if self.short:
            print(f"{self.short} rows have fewer than {self.arguments.topk} tokens; the rest of them is in the tail")
        if self.no_tail and self.arguments.topk < self.columns:
            print(
                f"{self.no_tail} rows have a given tail of 0 or less, which rules all other tokens out and makes "
                "reverse KL infinite; without the given tails it is computed, and at least --tail-floor"
            )
