#!/usr/bin/env python3
"""Makes a teacher's cache from hidden states that another program has computed, such as vLLM's extract_hidden_states.

Each dump is a safetensors file with `token_ids` [T] and `hidden_states` [T, layers, H] or [T, H]. Its tokens must be
those of a document of the token shards, or the beginning of one; the states' last layer is taken. Whether they are
before or after the final norm is measured; states from before it are normalised.

  scripts/import_teacher.py --teacher models/teacher --data data/train --dumps dumps/ --output work/cache

A run then reads them (teacher.source: cache, teacher.cache: work/cache; docs/teacher_cache.md).
"""

import script_path

import json
import sys
from pathlib import Path

import torch
from safetensors import safe_open

from shared.command_line import argument_parser, fail
from shared.folders import replaced_folder
from teacher_cache import folder as cache_folder
from teacher_cache.documents import Documents
from teacher_cache.norm import is_after_norm, rms_norm
from teacher_cache.part_file import Stretch, write_part
from token_shards.tokenizer_files import canonical_hash

PART_BYTES = 1 << 30
SAMPLE = 512  # tokens that are measured


def parse_arguments():
    parser = argument_parser(__doc__)
    parser.add_argument("--teacher", type=Path, required=True, help="Hugging Face folder of the model that was run")
    parser.add_argument("--data", type=Path, nargs="+", required=True, help="token shards, or folders of them")
    parser.add_argument("--dumps", type=Path, nargs="+", required=True, help="safetensors files, or folders of them")
    parser.add_argument("--output", type=Path, required=True, help="folder of the cache; it must not exist")
    parser.add_argument("--layer", type=int, default=-1, help="of the layers in the dumps (default: the last one)")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), help="stored dtype (default: that of the dumps)")
    parser.add_argument("--allow-missing", action="store_true", help="write the cache though documents have no dump")
    return parser.parse_args()


def dump_files(paths):
    files = [f for path in paths for f in (sorted(path.rglob("*.safetensors")) if path.is_dir() else [path])]
    if not files:
        fail(f"{', '.join(map(str, paths))}: expected safetensors files, found none")
    return files


def read_dump(path, layer, hidden_size):
    """(token ids, hidden states [T, layers, H], the layer's index)"""
    with safe_open(path, "pt") as file:
        names = set(file.keys())
        if not {"token_ids", "hidden_states"} <= names:
            fail(f"{path}: expected the tensors token_ids and hidden_states, found {', '.join(sorted(names))}")
        tokens, hidden = file.get_tensor("token_ids"), file.get_tensor("hidden_states")
    hidden = hidden[:, None] if hidden.ndim == 2 else hidden
    if hidden.ndim != 3 or hidden.shape[2] != hidden_size:
        fail(f"{path}: hidden_states: expected [tokens, layers, {hidden_size}], found {list(hidden.shape)}")
    if not -hidden.shape[1] <= layer < hidden.shape[1]:
        fail(f"{path}: --layer: expected one of {hidden.shape[1]} layers, found {layer}")
    if tokens.ndim != 1 or len(tokens) != len(hidden):
        fail(
            f"{path}: expected a hidden state for each token, found {len(hidden)} for {tokens.numel()} tokens; turn "
            "prefix caching off in the program that wrote it"
        )
    return tokens.numpy(), hidden, layer % hidden.shape[1]


def check_tokenizer(teacher, documents):
    path = teacher / "tokenizer.json"
    if path.exists():
        digest, _ = canonical_hash(json.loads(path.read_text()))
        if digest != documents.tokenizer_hash:
            fail(
                f"{path}: tokenizer_hash: expected {documents.tokenizer_hash.hex()} (the token shards), found "
                f"{digest.hex()}"
            )


class Importer:
    def __init__(self, arguments, documents):
        self.arguments, self.documents = arguments, documents
        self.config = json.loads((arguments.teacher / "config.json").read_text())
        self.lm_head, self.norm = cache_folder.read_head(arguments.teacher)
        self.eps = self.config.get("rms_norm_eps", 1e-6)
        self.after_norm = None  # of all dumps
        self.seen = set()  # shard and document

    def read(self, path):
        return read_dump(path, self.arguments.layer, self.lm_head.shape[1])

    def decide(self, files):
        """Measures the first dumps that have SAMPLE tokens; all dumps are treated alike."""
        states, labels, layer = [], [], 0
        for path in files:
            tokens, hidden, layer = self.read(path)
            if len(tokens) > 1:
                states.append(hidden[:-1])
                labels.append(torch.from_numpy(tokens[1:].copy()).long())
            if sum(map(len, labels)) >= SAMPLE:
                break
        if not labels:
            fail(f"{files[0]}: expected sequences of at least two tokens")
        layers = torch.cat(states)[:SAMPLE].unbind(1)
        targets = torch.cat(labels)[:SAMPLE]
        self.after_norm = is_after_norm(layers, layer, targets, self.lm_head, self.norm, self.eps, str(files[0]))
        print(f"the hidden states are {'after' if self.after_norm else 'before'} the final norm")

    def stretches(self, path, encoding):
        """The stretches of all documents that the dump is of."""
        tokens, hidden, layer = self.read(path)
        hidden = hidden[:, layer]
        found = [d for d in self.documents.beginning_with(tokens) if (d.shard, d.document) not in self.seen]
        for document in found:
            self.seen.add((document.shard, document.document))
            rows = hidden[torch.from_numpy(document.targets(len(tokens)))]
            rows = rows if self.after_norm else rms_norm(rows, self.norm, self.eps)
            yield Stretch(document.shard, document.document, 0, len(tokens), cache_folder.encode(rows, encoding))

    def groups(self, files, encoding):
        """Stretches in groups of about PART_BYTES. A dump that is of no document is an error."""
        group, size, strange = [], 0, []
        for path in files:
            before = len(self.seen)
            for stretch in self.stretches(path, encoding):
                group.append(stretch)
                size += len(stretch.rows)
            if len(self.seen) == before:
                strange.append(str(path))
            if size >= PART_BYTES:
                yield group
                group, size = [], 0
        if group:
            yield group
        if len(strange) == len(files):
            fail(f"no dump has the tokens of a document of --data; the first one is {strange[0]}")
        for path in strange:
            print(f"import_teacher: warning: {path}: its tokens begin no further document of --data", file=sys.stderr)


def manifest_of(importer, encoding, longest, parts):
    documents = importer.documents
    return {
        "format": "distill-teacher-cache",
        "version": cache_folder.VERSION,
        "encoding": encoding,
        "hidden_size": importer.lm_head.shape[1],
        "vocab_size": importer.lm_head.shape[0],
        "teacher_shape": f"imported, {importer.config.get('model_type', 'unknown')}",
        "teacher_hash": cache_folder.teacher_hash(importer.arguments.teacher),
        "precision": f"imported, {encoding}",
        "compute_dtype": encoding,
        "tokenizer_hash": documents.tokenizer_hash.hex(),
        "seq_len": max(2, longest),
        "teacher_seq_len": 0,
        "micro_batch_size": 0,
        "part_samples": 0,
        "parts": parts,
        "data": documents.files,
        "teacher": str(importer.arguments.teacher),
    }


def write_cache(importer, files, encoding, longest, out):
    """Parts carry a hash of the manifest, which says how many there are: they are counted first."""
    torch_dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[encoding]
    row_bytes = importer.lm_head.shape[1] * torch_dtype.itemsize
    manifest = manifest_of(importer, encoding, longest, parts=0)
    for part, group in enumerate(importer.groups(files, encoding)):
        write_part(out / f"part-{part:08d}.dtc", cache_folder.cache_id(manifest), part, row_bytes, group)
    cache_folder.write_head(out, importer.arguments.teacher, importer.lm_head, importer.norm, torch_dtype)
    cache_folder.write_manifest(out, manifest)
    missing = importer.documents.count - len(importer.seen)
    if missing and not importer.arguments.allow_missing:
        fail(
            f"expected a dump for each of {importer.documents.count} documents, found none for {missing} of them; "
            "--allow-missing writes the cache nevertheless, for a run that does not read them"
        )


def main():
    arguments = parse_arguments()
    if arguments.output.exists():
        fail(f"--output: expected a folder that does not exist, found {arguments.output}")
    try:
        documents = Documents(arguments.data)
        check_tokenizer(arguments.teacher, documents)
        files = dump_files(arguments.dumps)
        importer = Importer(arguments, documents)
        importer.decide(files)
        stored = {torch.bfloat16: "bfloat16", torch.float32: "float32"}.get(importer.read(files[0])[1].dtype, "float32")
        longest = max(len(importer.read(path)[0]) for path in files)
        with replaced_folder(arguments.output) as out:
            write_cache(importer, files, arguments.dtype or stored, longest, out)
    except (OSError, ValueError) as error:
        fail(str(error))
    print(f"{arguments.output}: {len(importer.seen)} of {documents.count} documents")


if __name__ == "__main__":
    main()
