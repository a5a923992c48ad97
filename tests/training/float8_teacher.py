"""A float8 teacher in PyTorch, and runs that have one, for several tests."""

import torch
import transformers

import reference_training
import tiny

FLOAT8 = {"dtype": "float8"}
OPEN = {"max_mean_kl": 100.0}  # the tiny random teachers are far from any real one


def float8_config(folder, pair, shard, **sections):
    teacher = FLOAT8 | sections.pop("teacher", {})
    float8 = OPEN | sections.pop("float8", {})
    sections.setdefault("train", {"steps": 4})
    config = tiny.base_config(folder, *pair, shard, scheduler={"warmup_steps": 1}, float8=float8, **sections)
    config["teacher"].update(teacher)
    return config


def rounded(x):
    """e4m3 with a scale for each row, as a number again."""
    scale = (x.abs().amax(-1, keepdim=True) / 448).clamp_min(1e-30)
    return (x * (1 / scale)).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale


class Float8Linear(torch.nn.Module):
    def __init__(self, linear):
        super().__init__()
        self.weight = rounded(linear.weight.detach())
        self.bias = 0 if linear.bias is None else linear.bias.detach()

    def forward(self, x):
        return rounded(x) @ self.weight.T + self.bias


class Float8Experts(torch.nn.Module):
    def __init__(self, experts):
        super().__init__()
        self.gate_up, self.down = (rounded(weight.detach()) for weight in (experts.gate_up_proj, experts.down_proj))

    def forward(self, hidden_states, chosen, weights):
        out = torch.zeros_like(hidden_states)
        for expert, (gate_up, down) in enumerate(zip(self.gate_up, self.down)):
            rows, place = (chosen == expert).nonzero(as_tuple=True)
            gate, up = (rounded(hidden_states[rows]) @ gate_up.T).chunk(2, dim=-1)
            product = rounded(torch.nn.functional.silu(gate) * up) @ down.T
            out.index_add_(0, rows, weights[rows, place, None] * product)
        return out


NAMES = {
    "qkv": ("q_proj", "k_proj", "v_proj", "qkv_proj"),
    "o": ("o_proj",),
    "gate_up": ("gate_proj", "up_proj", "gate_up_proj"),
    "down": ("down_proj",),
    "qkvz": ("in_proj_qkv", "in_proj_z"),
    "delta_out": ("out_proj",),
}


def mixer_of(layer):
    return layer.self_attn if hasattr(layer, "self_attn") else layer.linear_attn


def reference_teacher(folder, products=tuple(NAMES), blocks=None):
    """transformers' model with these products of these blocks (None: all) in float8."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, **reference_training.attention_of(folder)
    ).eval()
    for index, layer in enumerate(model.model.layers):
        if blocks is not None and index not in blocks:
            continue
        for name in (name for product in products for name in NAMES[product]):
            for owner in (mixer_of(layer), layer.mlp):
                if getattr(owner, name, None) is not None:  # a family has them fused, or one by one
                    setattr(owner, name, Float8Linear(getattr(owner, name)))
        if hasattr(layer.mlp, "shared_expert"):
            for name in (name for product in ("gate_up", "down") if product in products for name in NAMES[product]):
                if getattr(layer.mlp.shared_expert, name, None) is not None:
                    setattr(layer.mlp.shared_expert, name, Float8Linear(getattr(layer.mlp.shared_expert, name)))
        if hasattr(layer.mlp, "experts") and {"gate_up", "down"} <= set(products):
            layer.mlp.experts = Float8Experts(layer.mlp.experts)
    return model


def gate_line(run):
    (line,) = [line for line in (run / "log.txt").read_text().splitlines() if "float8 teacher against" in line]
    return line
