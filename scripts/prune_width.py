#!/usr/bin/env python3
"""Makes a narrower student from a teacher: keeps some of each layer's attention heads and MLP neurons.

What is kept is chosen in each layer by its measured contribution to the residual stream on a text:

  MLP neuron j         rms over tokens of its activation a_j (the input of down_proj) x |column j of down_proj|
  key-value group g    rms over tokens of |o_proj applied to the outputs of the group's query heads alone|

A key-value head and the query heads that share it are kept or dropped together. Layers, hidden size, head size,
embeddings, norms and lm_head stay. The kept rows and columns are copied, nothing is scaled: the student's output is the
teacher's with the dropped columns of o_proj and down_proj set to 0. kept.json of the student lists what was kept of
each layer.

  scripts/prune_width.py --teacher teacher --out student --kv-heads 2 --intermediate 768 --text train.jsonl
"""

import script_path

import json
from pathlib import Path

from prune_layers import PruneError, check_output, copy_side_files, decoder_prefix, read_json
from shared.command_line import argument_parser, at_least, fail
from shared.folders import replaced_folder
from shared.text_model import load_text_model, text_fields, with_text_fields
from shared.weight_files import weight_files

SEQUENCE = 512  # tokens
KEPT = "kept.json"


def calibration_tokens(tokenizer, path, count):
    """[sequences, SEQUENCE] ids: the documents of a JSONL file one after the other."""
    import torch

    ids = []
    try:
        with open(path, encoding="utf-8") as file:
            for line in file:
                ids += tokenizer(json.loads(line)["text"])["input_ids"]
                if len(ids) >= count:
                    break
    except OSError as error:
        raise PruneError(f"--text: {path}: {error.strerror}") from None
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise PruneError(f'--text: {path}: expected lines like {{"text": "..."}} ({error!r})') from None
    length = min(SEQUENCE, len(ids))
    if length < 2:
        raise PruneError(f"--text: {path}: expected text, found {len(ids)} tokens")
    ids = ids[: min(len(ids), count) // length * length]
    return torch.tensor(ids).view(-1, length)


def measure(model, tokens):
    """([layers][kv heads], [layers][neurons]): the contributions that the head of this file defines."""
    import torch

    config = model.config.get_text_config()
    layers = model.get_decoder().layers
    groups = config.num_key_value_heads
    heads = [torch.zeros(groups, dtype=torch.float64) for _ in layers]
    neurons = [torch.zeros(config.intermediate_size, dtype=torch.float64) for _ in layers]
    handles = []
    for index, layer in enumerate(layers):

        def attention(module, inputs, index=index):
            outputs = inputs[0].flatten(0, -2).double()
            width = outputs.shape[-1] // groups
            weight = module.weight.double()
            for group in range(groups):
                part = slice(group * width, (group + 1) * width)
                heads[index][group] += (outputs[:, part] @ weight[:, part].T).square().sum()

        def mlp(module, inputs, index=index):
            neurons[index] += inputs[0].flatten(0, -2).double().square().sum(0)

        handles.append(layer.self_attn.o_proj.register_forward_pre_hook(attention))
        handles.append(layer.mlp.down_proj.register_forward_pre_hook(mlp))
    with torch.inference_mode():
        for row in tokens:
            model(row[None], use_cache=False)
        for index, layer in enumerate(layers):
            neurons[index] = neurons[index].sqrt() * layer.mlp.down_proj.weight.double().norm(dim=0)
    for handle in handles:
        handle.remove()
    return heads, neurons


def largest(scores, count):
    """The positions of the `count` largest scores, in increasing order."""
    return scores.argsort(descending=True, stable=True)[:count].sort().values


def rows_of_heads(chosen, size):
    """Indices of the rows that belong to heads of `size` rows each."""
    import torch

    return (chosen[:, None] * size + torch.arange(size)).flatten()


def choose(teacher, text, count, kv_heads, intermediate):
    """{"kv_heads": [layers][kv_heads], "neurons": [layers][intermediate]}, measured; and on how many tokens."""
    model, tokenizer = load(teacher)
    attention, groups = model.get_decoder().layers[0].self_attn, model.config.get_text_config().num_key_value_heads
    norm = getattr(attention, "q_norm", None)
    if kv_heads < groups and norm is not None and norm.weight.numel() > attention.head_dim:
        raise PruneError(
            f"--kv-heads: expected {groups}, all of the teacher's, since {teacher} normalises q and k over all heads "
            f"at once; found {kv_heads}"
        )
    tokens = calibration_tokens(tokenizer, text, count)
    heads, neurons = measure(model, tokens)
    kept = {
        "kv_heads": [largest(scores, kv_heads).tolist() for scores in heads],
        "neurons": [largest(scores, intermediate).tolist() for scores in neurons],
    }
    return kept, tokens.numel()


def slices(fields, kept, head_dim, decoder):
    """{tensor name: (dimension, indices)} of what is kept of each sliced tensor. `decoder`: the prefix of the names."""
    import torch

    group = fields["num_attention_heads"] // fields["num_key_value_heads"] * head_dim  # rows of q for a key-value head
    result = {}
    for index, (heads, neurons) in enumerate(zip(kept["kv_heads"], kept["neurons"], strict=True)):
        prefix = f"{decoder}layers.{index}"
        heads, columns = torch.tensor(heads), torch.tensor(neurons)
        queries, keys = rows_of_heads(heads, group), rows_of_heads(heads, head_dim)
        for name, rows in (("q", queries), ("k", keys), ("v", keys)):
            result[f"{prefix}.self_attn.{name}_proj.weight"] = (0, rows)
            result[f"{prefix}.self_attn.{name}_proj.bias"] = (0, rows)
        result[f"{prefix}.self_attn.o_proj.weight"] = (1, queries)
        for name in ("gate", "up"):
            result[f"{prefix}.mlp.{name}_proj.weight"] = (0, columns)
            result[f"{prefix}.mlp.{name}_proj.bias"] = (0, columns)
        result[f"{prefix}.mlp.down_proj.weight"] = (1, columns)
        # One tensor for q, k, v and one for gate, up, as Phi-4-mini has them.
        first_key = fields["num_attention_heads"] * head_dim
        first_value = first_key + fields["num_key_value_heads"] * head_dim
        fused = torch.cat([queries, first_key + keys, first_value + keys])
        result[f"{prefix}.self_attn.qkv_proj.weight"] = (0, fused)
        result[f"{prefix}.mlp.gate_up_proj.weight"] = (0, torch.cat([columns, fields["intermediate_size"] + columns]))
    return result


def stored_tensors(folder):
    """{name: tensor} of a folder's weight files."""
    from safetensors.torch import load_file

    try:
        files = weight_files(folder)
    except ValueError as error:
        raise PruneError(str(error)) from None
    tensors = {}
    for file in files:
        tensors |= load_file(file)
    return tensors


def load(folder):
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    import torch

    try:
        model = load_text_model(folder, dtype=torch.float32)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise PruneError(f"{folder}: transformers cannot read it ({str(error).splitlines()[0]})") from None
    layers = getattr(model.get_decoder(), "layers", None)
    for path, other in (("self_attn.o_proj",) * 2, ("mlp.up_proj", "mlp.gate_up_proj"), ("mlp.down_proj",) * 2):
        try:
            names = {name for name, _ in layers[0].named_modules()}
        except (TypeError, AttributeError):
            names = set()
        if not {path, other} & names:
            raise PruneError(f"{folder}: no layers.0.{path}; expected a decoder like Llama's")
    return model.eval(), tokenizer


def prune(args):
    config_file = args.teacher / "config.json"
    config = read_json(config_file)
    try:
        fields = text_fields(args.teacher, config)
    except ValueError as error:
        raise PruneError(str(error)) from None
    most = {"--kv-heads": "num_key_value_heads", "--intermediate": "intermediate_size"}
    for key in (*most.values(), "num_hidden_layers", "num_attention_heads", "hidden_size"):
        if not isinstance(fields.get(key), int):
            raise PruneError(f"{config_file}: {key}: expected a number, found {fields.get(key)}")
    for flag, value in (("--kv-heads", args.kv_heads), ("--intermediate", args.intermediate)):
        if not 1 <= value <= fields[most[flag]]:
            raise PruneError(f"{flag}: expected a number from 1 to {fields[most[flag]]} (the teacher's), found {value}")
    check_output(args.out, args.teacher, args.force)
    kept, tokens = choose(args.teacher, args.text, args.tokens, args.kv_heads, args.intermediate)
    write(args, config, fields, kept, tokens)


def check_config(folder):
    """transformers refuses some numbers of heads, for Llama those that do not divide the hidden size."""
    import transformers
    from huggingface_hub.errors import StrictDataclassError

    try:
        transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    except (ValueError, StrictDataclassError) as error:
        cause = str(error.__cause__ or error).strip().splitlines()[-1].strip()
        raise PruneError(f"--kv-heads, --intermediate: transformers refuses the student: {cause}") from None


def write(args, config, fields, kept, tokens):
    from safetensors.torch import save_file

    head_dim = fields.get("head_dim") or fields["hidden_size"] // fields["num_attention_heads"]
    before, after = stored_tensors(args.teacher), {}
    kept_slices = slices(fields, kept, head_dim, decoder_prefix(before))
    for name, tensor in before.items():
        dimension, indices = kept_slices.get(name, (0, None))
        after[name] = tensor if indices is None else tensor.index_select(dimension, indices).contiguous()
    kv_heads, intermediate = len(kept["kv_heads"][0]), len(kept["neurons"][0])
    heads = fields["num_attention_heads"] // fields["num_key_value_heads"] * kv_heads
    changes = {
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "intermediate_size": intermediate,
    }
    with replaced_folder(args.out) as partial:
        save_file(after, partial / "model.safetensors", metadata={"format": "pt"})
        (partial / "model.safetensors").chmod(0o644)
        (partial / "config.json").write_text(json.dumps(with_text_fields(config, changes), indent=2) + "\n")
        (partial / KEPT).write_text(json.dumps(kept) + "\n")
        copy_side_files(args.teacher, partial)
        check_config(partial)
    parameters = [sum(tensor.numel() for tensor in tensors.values()) for tensors in (after, before)]
    print(
        f"{args.out}: {heads} of {fields['num_attention_heads']} heads ({kv_heads} of "
        f"{fields['num_key_value_heads']} key-value heads), {intermediate} of {fields['intermediate_size']} neurons in "
        f"each layer, {parameters[0] / 1e6:.1f} of {parameters[1] / 1e6:.1f} million parameters, chosen on "
        f"{tokens} tokens"
    )


def main():
    parser = argument_parser(__doc__)
    parser.add_argument("--teacher", type=Path, required=True, help="Hugging Face folder of a decoder like Llama's")
    parser.add_argument("--out", type=Path, required=True, help="student folder to write")
    parser.add_argument(
        "--kv-heads", type=int, required=True, metavar="N", help="key-value heads to keep in each layer"
    )
    parser.add_argument(
        "--intermediate", type=int, required=True, metavar="N", help="MLP neurons to keep in each layer"
    )
    parser.add_argument("--text", type=Path, required=True, metavar="FILE.jsonl", help="documents to measure on")
    parser.add_argument("--tokens", type=at_least(1), default=16384, help="how much of them (default 16384)")
    parser.add_argument("--force", action="store_true", help="replace an existing --out")
    args = parser.parse_args()
    try:
        prune(args)
    except PruneError as error:
        fail(error)


if __name__ == "__main__":
    main()
