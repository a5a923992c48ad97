"""The folder of a teacher's cache: manifest.json and head/ (trainer/teacher_cache/manifest.h, cache_folder.h)."""

import hashlib
import json
import os
import shutil
from pathlib import Path

from safetensors.torch import save_file

from shared.text_model import is_multimodal, text_prefixes
from shared.weight_files import weight_files
from teacher_cache.part_file import checksum
from teacher_cache.reading import open_tensors

VERSION, SPARSE_VERSION = 1, 2  # of caches of hidden states, and of those of a few tokens
# Keys of the manifest without paths, in the order in which they are hashed; those that a kind has not are left out.
IDENTITY = (
    "format",
    "version",
    "kind",
    "encoding",
    "hidden_size",
    "entries",
    "columns",
    "temperature",
    "softcap",
    "vocab_size",
    "teacher_shape",
    "teacher_hash",
    "precision",
    "compute_dtype",
    "tokenizer_hash",
    "head",
    "seq_len",
    "teacher_seq_len",
    "micro_batch_size",
    "part_samples",
    "parts",
    "data",
)
DATA_IDENTITY = ("header_hash", "documents", "tokens")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json")
WHOLE, ENDS, BLOCK, BLOCKS = 1 << 20, 64 << 10, 4 << 10, 64  # of a file's fingerprint, bytes


def cache_id(manifest):
    """The bytes that every part of the cache repeats."""
    identity = {key: manifest[key] for key in IDENTITY if key in manifest}
    identity["data"] = [{key: file[key] for key in DATA_IDENTITY} for file in manifest["data"]]
    return hashlib.sha256(json.dumps(identity, separators=(",", ":"), ensure_ascii=False).encode()).digest()


def write_manifest(folder, manifest):
    path = Path(folder) / "manifest.json"
    partial = Path(f"{path}.partial")
    with open(partial, "w") as file:
        file.write(json.dumps(manifest, indent=2, ensure_ascii=False) + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.rename(partial, path)


def _fingerprint(path):
    data = path.read_bytes() if path.stat().st_size <= WHOLE else None
    if data is not None:
        return checksum(data)
    size = path.stat().st_size
    with open(path, "rb") as file:
        pieces = [file.read(ENDS)]
        for i in range(1, BLOCKS):
            file.seek(size // BLOCKS * i)
            pieces.append(file.read(BLOCK))
        file.seek(size - ENDS)
        pieces.append(file.read(ENDS))
    return checksum(b"".join(pieces))


def teacher_hash(folder):
    """A hash of the files that define a model (trainer/hf/fingerprint.cpp)."""
    names = sorted(
        path
        for path in Path(folder).iterdir()
        if path.suffix == ".safetensors" or path.name in ("config.json", "model.safetensors.index.json")
    )
    text = "".join(f"{path.name} {path.stat().st_size} {_fingerprint(path):016x}\n" for path in names)
    return hashlib.sha256(text.encode()).hexdigest()


def _is_tied(folder):
    config = json.loads((Path(folder) / "config.json").read_text())
    if not is_multimodal(config):
        return config.get("tie_word_embeddings", False)
    from transformers import AutoConfig

    whole = AutoConfig.from_pretrained(folder, local_files_only=True)
    return any(getattr(each, "tie_word_embeddings", False) for each in (whole, whole.get_text_config()))


def read_head(folder):
    """(lm_head [V, G], final norm [G]) of a Hugging Face folder, in the dtype that they are stored in.

    A stored lm_head is the head, whatever config.json has; without one, that of a tied model is its embedding."""
    found = {}
    files = weight_files(folder)
    names = []
    for path in files:
        with open_tensors(path) as file:
            names += file.keys()
    decoder, head = text_prefixes(names)
    stored = {
        f"{head}weight": "lm_head.weight",
        f"{decoder}embed_tokens.weight": "model.embed_tokens.weight",
        f"{decoder}norm.weight": "model.norm.weight",
    }
    for path in files:
        with open_tensors(path) as file:
            for name in stored.keys() & set(file.keys()):
                found[stored[name]] = file.get_tensor(name)
    lm_head = found.get("lm_head.weight")
    tied = _is_tied(folder)
    if lm_head is None and not tied:
        raise ValueError(
            f"{folder}: expected lm_head.weight, found none; a model whose head is its embedding has "
            "tie_word_embeddings: true in its config.json"
        )
    lm_head = found.get("model.embed_tokens.weight") if lm_head is None else lm_head
    if lm_head is None or "model.norm.weight" not in found:
        raise ValueError(f"{folder}: expected model.norm.weight and lm_head.weight or model.embed_tokens.weight")
    norm = found["model.norm.weight"]
    if lm_head.ndim != 2 or list(norm.shape) != [lm_head.shape[1]]:
        raise ValueError(
            f"{folder}: expected lm_head.weight [V, H] and model.norm.weight [H], found {list(lm_head.shape)} and "
            f"{list(norm.shape)}"
        )
    return lm_head, norm


def write_head(folder, teacher, tensors, tokenizer=None):
    """head/: what a run needs of the teacher besides the rows; `tensors`: of its weights, if any; `tokenizer`: its
    folder or tokenizer.json, if that is not in the teacher's folder."""
    head = Path(folder) / "head"
    head.mkdir()
    shutil.copyfile(Path(teacher) / "config.json", head / "config.json")
    tokenizer = Path(tokenizer or teacher)
    if tokenizer.is_dir():
        for name in TOKENIZER_FILES:
            if (tokenizer / name).exists():
                shutil.copyfile(tokenizer / name, head / name)
    else:
        shutil.copyfile(tokenizer, head / "tokenizer.json")
    if tensors:
        save_file(tensors, head / "model.safetensors")
    # Its hash is part of the cache's identity (head_hash), so that no other head fits the rows.
    sums = [f"XXH3 ({path.name}) = {checksum(path.read_bytes()):016x}\n" for path in sorted(head.iterdir())]
    (head / "checksums.xxh3").write_text("".join(sums))


def head_hash(folder):
    """`head` of the manifest."""
    return hashlib.sha256((Path(folder) / "head" / "checksums.xxh3").read_bytes()).hexdigest()
