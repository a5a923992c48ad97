#!/usr/bin/env python3
"""Makes a smaller student from a teacher: keeps some of its layers, and of each layer some attention heads, MLP neurons
and experts.

What is kept is chosen by what it contributes on a text:

  layer                the mean over tokens of 1 - cosine of the residual stream before and after it (Men et al. 2024)
  MLP neuron j         rms over tokens of its activation a_j (the input of down_proj) x |column j of down_proj|
  key-value group g    rms over tokens of |o_proj applied to the outputs of the group's query heads alone|
  expert e             the sum over tokens of the router's weight of it, 0 where a token does not visit it

A key-value head and the query heads that share it are kept or dropped together; the heads of linear attention
(Qwen3.5) all stay. Hidden size, head size, embeddings,
norms and lm_head stay. The kept rows and columns are copied, nothing is scaled: the student's output is the teacher's
with the dropped columns of o_proj and down_proj set to 0, and with routers that know the kept experts alone. kept.json
of the student lists what was kept, layer by layer. The neurons of experts are not pruned.

  scripts/prune_width.py --teacher teacher --out student --kv-heads 2 --intermediate 768 --text train.jsonl
  scripts/prune_width.py --teacher teacher --out student --experts 64 --layers 36 --text train.jsonl
"""

import script_path

import json
import re
from pathlib import Path

from prune_layers import (
    PruneError,
    check_last_layer,
    check_output,
    copy_side_files,
    decoder_prefix,
    derived_lists,
    prune_config,
    read_json,
)
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


def key_value_heads(layer, fields):
    """The number of a layer's key-value heads, None of linear attention; layers of Gemma 4 differ in it."""
    if not hasattr(layer, "self_attn"):
        return None
    projection = getattr(layer.self_attn, "k_proj", None)
    if projection is None:  # q, k and v are one tensor
        return fields["num_key_value_heads"]
    return projection.weight.shape[0] // layer.self_attn.head_dim


class Contributions:
    """Measures what layers, heads, neurons and experts contribute, as the head of this file defines it."""

    def __init__(self, model, fields):
        import torch

        self.layers = model.get_decoder().layers
        zeros = lambda count: torch.zeros(count, dtype=torch.float64)  # noqa: E731
        self.influence = zeros(len(self.layers))
        counts = [key_value_heads(layer, fields) for layer in self.layers]
        self.heads = [None if count is None else zeros(count) for count in counts]
        self.neurons = [
            zeros(layer.mlp.down_proj.weight.shape[1]) if hasattr(layer.mlp, "down_proj") else None
            for layer in self.layers
        ]
        self.experts = [
            zeros(layer.mlp.gate.weight.shape[0]) if hasattr(layer.mlp, "experts") else None for layer in self.layers
        ]

    def measure(self, model, tokens):
        import torch

        handles = [handle for index in range(len(self.layers)) for handle in self._watch(index)]
        with torch.inference_mode():
            for row in tokens:
                model(row[None], use_cache=False)
            for layer, neurons in zip(self.layers, self.neurons):
                if neurons is not None:
                    neurons.sqrt_().mul_(layer.mlp.down_proj.weight.double().norm(dim=0))
        for handle in handles:
            handle.remove()

    def _watch(self, index):
        import torch

        layer = self.layers[index]

        def attention(module, inputs):
            outputs = inputs[0].flatten(0, -2).double()
            groups = len(self.heads[index])
            width = outputs.shape[-1] // groups
            weight = module.weight.double()
            for group in range(groups):
                part = slice(group * width, (group + 1) * width)
                self.heads[index][group] += (outputs[:, part] @ weight[:, part].T).square().sum()

        def mlp(module, inputs):
            self.neurons[index] += inputs[0].flatten(0, -2).double().square().sum(0)

        def router(module, inputs, output):
            _, weights, chosen = output
            self.experts[index].index_add_(0, chosen.flatten(), weights.flatten().double())

        def whole(module, inputs, output):
            before, after = (x.flatten(0, -2).double() for x in (inputs[0], output))
            self.influence[index] += (1 - torch.cosine_similarity(before, after, dim=-1)).sum()

        if self.heads[index] is not None:
            yield layer.self_attn.o_proj.register_forward_pre_hook(attention)
        yield layer.register_forward_hook(whole)
        if self.experts[index] is None:
            yield layer.mlp.down_proj.register_forward_pre_hook(mlp)
        else:
            yield layer.mlp.gate.register_forward_hook(router)


def largest(scores, count):
    """The positions of the `count` largest scores, in increasing order."""
    return scores.argsort(descending=True, stable=True)[:count].sort().values


def rows_of_heads(chosen, size):
    """Indices of the rows that belong to heads of `size` rows each."""
    import torch

    return (chosen[:, None] * size + torch.arange(size)).flatten()


def choose(args, fields):
    """What is kept, layer by layer of those that are, as kept.json has it; and on how many tokens that was measured."""
    model, tokenizer = load(args.teacher)
    contributions = Contributions(model, fields)
    check_heads(args, contributions)
    tokens = calibration_tokens(tokenizer, args.text, args.tokens)
    contributions.measure(model, tokens)
    count = len(contributions.layers)
    layers = largest(contributions.influence, args.layers or count).tolist()

    def best(scores, wanted):
        return None if scores is None else largest(scores, wanted or len(scores)).tolist()

    return {
        "layers": layers,
        "kv_heads": [best(contributions.heads[layer], args.kv_heads) for layer in layers],
        "neurons": [best(contributions.neurons[layer], args.intermediate) for layer in layers],
        "experts": [best(contributions.experts[layer], args.experts) for layer in layers],
    }, tokens.numel()


def check_heads(args, contributions):
    """Refuses to drop heads where the teacher's norms or sizes do not allow it."""
    if args.kv_heads is None:
        return
    groups = {len(heads) for heads in contributions.heads if heads is not None}
    attention = next((layer.self_attn for layer in contributions.layers if hasattr(layer, "self_attn")), None)
    if attention is None:
        raise PruneError(
            f"--kv-heads: expected a teacher with attention, {args.teacher} has none; found {args.kv_heads}"
        )
    if len(groups) > 1:
        raise PruneError(
            f"--kv-heads: cannot be given, since layers of {args.teacher} differ in their key-value heads "
            f"({', '.join(map(str, sorted(groups)))}); found {args.kv_heads}"
        )
    norm = getattr(attention, "q_norm", None)
    if args.kv_heads < max(groups) and norm is not None and norm.weight.numel() > attention.head_dim:
        raise PruneError(
            f"--kv-heads: expected {max(groups)}, all of the teacher's, since {args.teacher} normalises q and k over "
            f"all heads at once; found {args.kv_heads}"
        )


def attention_slices(fields, heads, head_dim, query_rows):
    """{name of a tensor in a layer: (dimension, indices)} of what is kept of its attention. `query_rows`: of q_proj for
    a head, which may have the rows of a gate beside those of the query."""
    import torch

    group = fields["num_attention_heads"] // fields["num_key_value_heads"] * head_dim  # rows of q for a key-value head
    heads = torch.tensor(heads)
    queries, keys = rows_of_heads(heads, group), rows_of_heads(heads, head_dim)
    result = {"self_attn.o_proj.weight": (1, queries)}
    for name, rows in (("q", rows_of_heads(heads, group // head_dim * query_rows)), ("k", keys), ("v", keys)):
        result[f"self_attn.{name}_proj.weight"] = (0, rows)
        result[f"self_attn.{name}_proj.bias"] = (0, rows)
    # One tensor for q, k, v, as Phi-4-mini has them.
    first_key = fields["num_attention_heads"] * head_dim
    first_value = first_key + fields["num_key_value_heads"] * head_dim
    result["self_attn.qkv_proj.weight"] = (0, torch.cat([queries, first_key + keys, first_value + keys]))
    return result


def mlp_slices(fields, neurons):
    """The same of its MLP."""
    import torch

    columns = torch.tensor(neurons)
    result = {"mlp.down_proj.weight": (1, columns)}
    for name in ("gate", "up"):
        result[f"mlp.{name}_proj.weight"] = (0, columns)
        result[f"mlp.{name}_proj.bias"] = (0, columns)
    # One tensor for gate, up, as Phi-4-mini has them.
    result["mlp.gate_up_proj.weight"] = (0, torch.cat([columns, fields["intermediate_size"] + columns]))
    return result


def slices(fields, kept, position, head_dim, query_rows, prunes_heads):
    """The same of the whole layer that is the student's with the number `position`."""
    import torch

    heads, neurons, experts = (kept[kind][position] for kind in ("kv_heads", "neurons", "experts"))
    result = {}
    if prunes_heads and heads is not None:
        result |= attention_slices(fields, heads, head_dim, query_rows)
    if neurons is not None:
        result |= mlp_slices(fields, neurons)
    if experts is not None:
        for name in ("gate.weight", "experts.gate_up_proj", "experts.down_proj"):  # the last two: all in one tensor
            result[f"mlp.{name}"] = (0, torch.tensor(experts))
    return result


def pruned_tensors(before, fields, kept, head_dim, prunes_heads):
    """The student's tensors by name, of the teacher's."""
    pattern = re.compile(rf"({re.escape(decoder_prefix(before))}layers\.)(\d+)\.(?:(mlp\.experts\.)(\d+)\.)?(.*)")
    query_rows = head_dim
    for name, tensor in before.items():
        if name.endswith("self_attn.q_proj.weight") and pattern.fullmatch(name):
            query_rows = tensor.shape[0] // fields["num_attention_heads"]
    of_layer = [
        slices(fields, kept, position, head_dim, query_rows, prunes_heads) for position in range(len(kept["layers"]))
    ]
    after = {}
    for name, tensor in before.items():
        match = pattern.fullmatch(name)
        if match is None:
            after[name] = tensor
            continue
        start, layer, experts, expert, rest = match.groups()
        if int(layer) not in kept["layers"]:
            continue
        position = kept["layers"].index(int(layer))
        inner = rest
        if expert is not None:
            chosen = kept["experts"][position]
            if int(expert) not in chosen:
                continue
            inner = f"{experts}{chosen.index(int(expert))}.{rest}"
        dimension, indices = of_layer[position].get(inner, (0, None))
        after[f"{start}{position}.{inner}"] = (
            tensor if indices is None else tensor.index_select(dimension, indices).contiguous()
        )
    return after


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
    for paths in (
        ["self_attn.o_proj", "linear_attn.out_proj"],
        ["mlp.up_proj", "mlp.gate_up_proj", "mlp.gate"],
        ["mlp.down_proj", "mlp.experts"],
    ):
        try:
            names = {name for name, _ in layers[0].named_modules()}
        except (TypeError, AttributeError):
            names = set()
        if not names.intersection(paths):
            raise PruneError(f"{folder}: no layers.0.{paths[0]}; expected a decoder like Llama's")
    return model.eval(), tokenizer


def number_of_experts(fields):
    return fields.get("num_experts") or fields.get("num_local_experts") or 0


def prune(args):
    config_file = args.teacher / "config.json"
    config = read_json(config_file)
    try:
        fields = text_fields(args.teacher, config)
    except ValueError as error:
        raise PruneError(str(error)) from None
    for key in ("num_key_value_heads", "intermediate_size", "num_hidden_layers", "num_attention_heads", "hidden_size"):
        if not isinstance(fields.get(key), int):
            raise PruneError(f"{config_file}: {key}: expected a number, found {fields.get(key)}")
    fields |= derived_lists(args.teacher, fields)
    for flag, value, least, most in (
        ("--kv-heads", args.kv_heads, 1, fields["num_key_value_heads"]),
        ("--intermediate", args.intermediate, 1, fields["intermediate_size"]),
        ("--layers", args.layers, 1, fields["num_hidden_layers"]),
        ("--experts", args.experts, fields.get("num_experts_per_tok") or 1, number_of_experts(fields)),
    ):
        if value is not None and most == 0:
            raise PruneError(f"{flag}: expected a teacher with experts, {args.teacher} has none; found {value}")
        if value is not None and not least <= value <= most:
            raise PruneError(f"{flag}: expected a number from {least} to {most} (the teacher's), found {value}")
    check_output(args.out, args.teacher, args.force)
    kept, tokens = choose(args, fields)
    check_last_layer(args.teacher, fields, kept["layers"], "--layers")
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


def student_config(args, config, fields, kept, head_dim):
    """config.json of the student."""
    changes = {}
    if args.kv_heads is not None:
        heads = fields["num_attention_heads"] // fields["num_key_value_heads"] * args.kv_heads
        changes |= {"num_attention_heads": heads, "num_key_value_heads": args.kv_heads, "head_dim": head_dim}
    if args.intermediate is not None:
        changes["intermediate_size"] = args.intermediate
    if args.experts is not None:
        changes |= {key: args.experts for key in ("num_experts", "num_local_experts") if fields.get(key)}
    changed = with_text_fields(config, changes)
    return changed if args.layers is None else prune_config(changed, fields | changes, kept["layers"])


def write(args, config, fields, kept, tokens):
    from safetensors.torch import save_file

    head_dim = fields.get("head_dim") or fields["hidden_size"] // fields["num_attention_heads"]
    before = stored_tensors(args.teacher)
    further = [name for name in before if name.startswith("mtp.")]
    if further and (args.kv_heads is not None or args.intermediate is not None or args.experts is not None):
        # The layers that predict further tokens (Qwen3.5) have the sizes of config.json, which change.
        print(f"left out, since they have the teacher's sizes ({len(further)}): {', '.join(further[:6])}")
        before = {name: tensor for name, tensor in before.items() if name not in further}
    after = pruned_tensors(before, fields, kept, head_dim, prunes_heads=args.kv_heads is not None)
    with replaced_folder(args.out) as partial:
        save_file(after, partial / "model.safetensors", metadata={"format": "pt"})
        (partial / "model.safetensors").chmod(0o644)
        changed = student_config(args, config, fields, kept, head_dim)
        (partial / "config.json").write_text(json.dumps(changed, indent=2) + "\n")
        (partial / KEPT).write_text(json.dumps(kept) + "\n")
        copy_side_files(args.teacher, partial)
        check_config(partial)
    print(f"{args.out}: {summary(args, fields, [after, before])}, chosen on {tokens} tokens")


def summary(args, fields, tensors):
    """What the student has of the teacher."""
    parts = []
    if args.layers is not None:
        parts.append(f"{args.layers} of {fields['num_hidden_layers']} layers")
    if args.kv_heads is not None:
        heads, groups = fields["num_attention_heads"], fields["num_key_value_heads"]
        parts.append(
            f"{heads // groups * args.kv_heads} of {heads} heads ({args.kv_heads} of {groups} key-value heads)"
        )
    if args.intermediate is not None:
        parts.append(f"{args.intermediate} of {fields['intermediate_size']} neurons in each layer")
    if args.experts is not None:
        parts.append(f"{args.experts} of {number_of_experts(fields)} experts")
    parameters = [sum(tensor.numel() for tensor in of_model.values()) / 1e6 for of_model in tensors]
    return ", ".join([*parts, f"{parameters[0]:.1f} of {parameters[1]:.1f} million parameters"])


def main():
    parser = argument_parser(__doc__)
    parser.add_argument("--teacher", type=Path, required=True, help="Hugging Face folder of a decoder like Llama's")
    parser.add_argument("--out", type=Path, required=True, help="student folder to write")
    for flag, what in (
        ("--layers", "layers to keep"),
        ("--kv-heads", "key-value heads to keep in each layer"),
        ("--intermediate", "MLP neurons to keep in each layer"),
        ("--experts", "experts to keep in each layer that has some"),
    ):
        parser.add_argument(flag, type=int, metavar="N", help=f"{what} (default: all)")
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
