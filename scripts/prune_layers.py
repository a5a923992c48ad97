#!/usr/bin/env python3
"""Makes a student from some of a teacher's layers: reads a Hugging Face folder and writes another.

The script copies the embeddings, the final norm, the lm_head and the chosen decoder layers byte for byte, one tensor at
a time, so that a folder of any size and dtype needs almost no memory. config.json gets the new number of layers, and of
every list with one entry per layer, those that its class derives included, the chosen entries. What it says of layers
by their numbers (which have experts, or heads of their own size) has the new numbers. The tokenizer, processor
and generation files are copied too. Of a multimodal folder the layers of the text model are chosen, and the other parts
are copied whole.

  scripts/prune_layers.py --teacher teacher --out student --every 3
  scripts/prune_layers.py --teacher teacher --out student --layers 0,1,2,14,29
"""

import script_path

import json
import os
import re
import shutil
import struct
from dataclasses import dataclass
from pathlib import Path

from shared.command_line import argument_parser, fail
from shared.folders import replaced_folder
from shared.text_model import text_fields, text_prefixes, with_text_fields
from shared.weight_files import INDEX, weight_files, weight_map

COPIED = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template*",
    "additional_chat_templates/*.jinja",
    "generation_config.json",
    "*processor_config.json",
    "LICENSE*",
)


class PruneError(Exception):
    """A bad input; the message says the file or flag, the expected and the found value."""


@dataclass
class StoredTensor:
    name: str
    dtype: str
    shape: list
    file: Path
    offset: int  # bytes from the file's start
    size: int  # bytes


def read_json(path):
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise PruneError(f"{path}: no such file") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise PruneError(f"{path}: not valid JSON ({error})") from None
    if not isinstance(value, dict):
        raise PruneError(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value


def read_header(path):
    """The tensors of one safetensors file."""
    if not path.is_file():
        raise PruneError(f"{path}: no such file")
    file_size = path.stat().st_size
    with open(path, "rb") as file:
        prefix = file.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else None
        if length is None or length > file_size - 8:
            raise PruneError(
                f"{path}: truncated or no safetensors file (header of {length} bytes, file of {file_size})"
            )
        try:
            header = json.loads(file.read(length))
            header.pop("__metadata__", None)
            tensors = []
            for name, entry in header.items():
                begin, end = entry["data_offsets"]
                if not 0 <= begin <= end <= file_size - 8 - length:
                    raise PruneError(
                        f"{path}: tensor {name} lies at bytes {begin} to {end}, "
                        f"but the file has {file_size - 8 - length} bytes of data"
                    )
                tensors.append(
                    StoredTensor(name, entry["dtype"], entry["shape"], path, 8 + length + begin, end - begin)
                )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise PruneError(f"{path}: bad safetensors header ({error})") from None
    return tensors


def read_tensors(folder):
    """All tensors of a model folder, from one file or from the files in its index."""
    try:
        files, listed = weight_files(folder), weight_map(folder)
    except ValueError as error:
        raise PruneError(str(error)) from None
    tensors = {}
    for file in files:
        for tensor in read_header(file):
            if tensor.name in tensors:
                raise PruneError(f"tensor {tensor.name} is in both {tensors[tensor.name].file} and {file}")
            tensors[tensor.name] = tensor
    for name, file in listed.items():
        if name not in tensors:
            raise PruneError(f"{folder / file}: no tensor {name}, which the index says is there")
    return list(tensors.values())


def parse_layers(text, every, count):
    """The chosen layers, in order, for --layers or --every."""
    if every is not None:
        if not 1 <= every <= count:
            raise PruneError(f"--every: expected a number from 1 to {count} (the teacher's layers), found {every}")
        return list(range(0, count, every))
    try:
        layers = [int(part) for part in text.split(",")]
    except ValueError:
        raise PruneError(f"--layers: expected numbers separated by commas, found {text!r}") from None
    for layer in layers:
        if not 0 <= layer < count:
            raise PruneError(f"--layers: expected layers from 0 to {count - 1}, found {layer}")
    if layers != sorted(set(layers)):
        raise PruneError(f"--layers: expected increasing numbers, each once, found {text}")
    return layers


def derived_lists(folder, config):
    """The lists with one entry per layer that config.json leaves to its class in transformers, which makes them of the
    layers' numbers: windows in each sixth layer, full attention in each fourth, layers without RoPE."""
    hints = {
        "layer_types": (
            "sliding_window",
            "sliding_window_pattern",
            "full_attention_interval",
            "linear_num_value_heads",
        ),
        "no_rope_layers": ("no_rope_layer_interval",),
    }
    missing = [key for key, keys in hints.items() if key not in config and any(config.get(hint) for hint in keys)]
    if not missing:
        return {}
    import transformers

    try:
        complete = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    except Exception:  # not a model that transformers knows: it has no class that derives anything
        return {}
    return {key: value for key in missing if isinstance(value := getattr(complete, key, None), list)}


def check_last_layer(folder, fields, layers, flag):
    """transformers gives the last layer of a Gemma 4 full attention, whatever config.json says."""
    types = fields.get("layer_types") or []
    if str(fields.get("model_type")).startswith("gemma4") and types and types[layers[-1]] != "full_attention":
        full = [layer for layer, kind in enumerate(types) if kind == "full_attention"]
        raise PruneError(
            f"{flag}: expected a last layer with full attention, which {folder} needs (layers "
            f"{', '.join(map(str, full))}), found layer {layers[-1]}"
        )


def prune_config(config, fields, layers):
    """config.json of the student. A list with one entry per layer (layer_types, ...) keeps the chosen entries.
    `fields`: the keys of the text model."""
    count = fields["num_hidden_layers"]
    pruned = {"num_hidden_layers": len(layers)}
    for key, value in fields.items():
        if isinstance(value, list) and len(value) == count and key not in ("architectures", "eos_token_id"):
            pruned[key] = [value[layer] for layer in layers]
    if isinstance(fields.get("per_layer_config"), dict):  # Gemma 4's heads, by the number of the layer
        by_layer = {int(layer): value for layer, value in fields["per_layer_config"].items()}
        pruned["per_layer_config"] = {str(i): by_layer[layer] for i, layer in enumerate(layers) if layer in by_layer}
    if "decoder_sparse_step" in fields or "mlp_only_layers" in fields:  # which layers have experts, by their numbers
        step, dense = fields.get("decoder_sparse_step") or 1, fields.get("mlp_only_layers") or []
        is_dense = [layer in dense or (layer + 1) % step != 0 for layer in layers]
        pruned |= {"decoder_sparse_step": 1, "mlp_only_layers": [i for i, plain in enumerate(is_dense) if plain]}
    if isinstance(interval := fields.get("full_attention_interval"), int):  # Qwen3.5's, beside layer_types
        in_turn = [(i + 1) % interval == 0 for i in range(len(layers))]
        if in_turn != [kind == "full_attention" for kind in pruned.get("layer_types", in_turn)]:
            pruned["full_attention_interval"] = None  # the list alone says it
    if isinstance(fields.get("max_window_layers"), int):  # Qwen2, Qwen3: the first layers, without a sliding window
        pruned["max_window_layers"] = sum(layer < fields["max_window_layers"] for layer in layers)
    return with_text_fields(config, pruned)


def decoder_prefix(names):
    """What the names of the decoder's tensors begin with, of all names of a folder."""
    try:
        return text_prefixes(names)[0]
    except ValueError as error:
        raise PruneError(str(error)) from None


def prune_tensors(tensors, layers, count):
    """([(new name, tensor)] of the student, in the teacher's order; names of layers beyond the teacher's `count`)."""
    position = {layer: index for index, layer in enumerate(layers)}
    prefix = decoder_prefix(tensor.name for tensor in tensors)
    pattern = re.compile(rf"^((?:{re.escape(prefix)}){'?' if prefix == 'model.' else ''}layers\.)(\d+)\.")
    kept, beyond, found = [], [], set()
    for tensor in tensors:
        match = pattern.match(tensor.name)
        if match is None:
            kept.append((tensor.name, tensor))
            continue
        layer = int(match[2])
        found.add(layer)
        if layer in position:
            kept.append((f"{match[1]}{position[layer]}{tensor.name[match.end(2) :]}", tensor))
        elif layer >= count:
            beyond.append(tensor.name)
    if missing := sorted(set(range(count)) - found):
        raise PruneError(f"config.json says {count} layers; the weights lack layers {missing}")
    return kept, beyond


def split_shards(kept, limit):
    """Cuts the tensors into files of at most `limit` bytes (a larger tensor gets its own)."""
    shards, size = [[]], 0
    for item in kept:
        if shards[-1] and size + item[1].size > limit:
            shards.append([])
            size = 0
        shards[-1].append(item)
        size += item[1].size
    return shards


def write_shard(path, items):
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, tensor in items:
        header[name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [offset, offset + tensor.size]}
        offset += tensor.size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the data starts aligned
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for _, tensor in items:
            with open(tensor.file, "rb") as source:
                source.seek(tensor.offset)
                left = tensor.size
                while left:
                    block = source.read(min(left, 16 << 20))
                    if not block:
                        raise PruneError(f"{tensor.file}: ended inside tensor {tensor.name}")
                    out.write(block)
                    left -= len(block)
        out.flush()
        os.fsync(out.fileno())


def check_output(out, teacher, force):
    """A PruneError unless `out` may be written: it is new, or a model folder that may be replaced."""
    if out.resolve() == teacher.resolve() or teacher.resolve() in out.resolve().parents:
        raise PruneError(f"--out: {out} is the teacher's folder or inside it")
    if out.exists():
        if not force:
            raise PruneError(f"--out: {out} exists; --force replaces it")
        if not (out / "config.json").is_file():
            raise PruneError(f"--out: {out} is no model folder, so --force does not replace it")


def copy_side_files(teacher, folder):
    """The tokenizer with all its chat templates, the generation settings and the licence."""
    for pattern in COPIED:
        for file in teacher.glob(pattern):
            if file.is_file():
                target = folder / file.relative_to(teacher)
                target.parent.mkdir(exist_ok=True)
                shutil.copyfile(file, target)


def write_folder(folder, teacher, config, kept, shard_bytes):
    shards = split_shards(kept, shard_bytes)
    names = ["model.safetensors"]
    if len(shards) > 1:
        names = [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
    for name, items in zip(names, shards):
        write_shard(folder / name, items)
    if len(shards) > 1:
        index = {
            "metadata": {"total_size": sum(tensor.size for _, tensor in kept)},
            "weight_map": {tensor: name for name, items in zip(names, shards) for tensor, _ in items},
        }
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    copy_side_files(teacher, folder)


def prune(args):
    config = read_json(args.teacher / "config.json")
    try:
        fields = text_fields(args.teacher, config)
    except ValueError as error:
        raise PruneError(str(error)) from None
    count = fields.get("num_hidden_layers")
    if not isinstance(count, int) or count < 1:
        raise PruneError(
            f"{args.teacher / 'config.json'}: num_hidden_layers: expected a positive number, found {count}"
        )
    if not args.max_shard_gb > 0:
        raise PruneError(f"--max-shard-gb: expected a positive number, found {args.max_shard_gb:g}")
    layers = parse_layers(args.layers, args.every, count)
    check_last_layer(
        args.teacher,
        fields | derived_lists(args.teacher, fields),
        layers,
        "--every" if args.layers is None else "--layers",
    )
    config |= derived_lists(args.teacher, config)
    kept, beyond = prune_tensors(read_tensors(args.teacher), layers, count)
    check_output(args.out, args.teacher, args.force)
    with replaced_folder(args.out) as partial:
        pruned = prune_config(config, fields | derived_lists(args.teacher, fields), layers)
        write_folder(partial, args.teacher, pruned, kept, int(args.max_shard_gb * 1e9))
    if beyond:
        print(f"left out, since config.json says {count} layers ({len(beyond)}): {', '.join(beyond[:6])}")
    parameters = [sum(elements(t) for t in tensors) for tensors in ((t for _, t in kept), read_tensors(args.teacher))]
    print(
        f"{args.out}: layers {','.join(map(str, layers))} of {count}, "
        f"{parameters[0] / 1e6:.1f} of {parameters[1] / 1e6:.1f} million parameters"
    )


def elements(tensor):
    total = 1
    for size in tensor.shape:
        total *= size
    return total


def main():
    parser = argument_parser(__doc__)
    parser.add_argument("--teacher", type=Path, required=True, help="Hugging Face folder to take the layers from")
    parser.add_argument("--out", type=Path, required=True, help="student folder to write")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--every", type=int, metavar="K", help="layers 0, K, 2K, ...")
    which.add_argument("--layers", metavar="I,J,...", help="the layers to take, counted from 0")
    parser.add_argument("--max-shard-gb", type=float, default=5.0, help="largest weight file, GB (default 5)")
    parser.add_argument("--force", action="store_true", help="replace an existing --out")
    args = parser.parse_args()
    try:
        prune(args)
    except PruneError as error:
        fail(error)


if __name__ == "__main__":
    main()
