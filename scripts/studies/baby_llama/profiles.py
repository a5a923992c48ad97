"""The sizes of the study: those of the published code, and tiny ones for a test."""

from dataclasses import dataclass


def shape(layers, hidden, heads, intermediate):
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "intermediate_size": intermediate,
    }


@dataclass(frozen=True)
class Training:
    """Of a teacher or a student: AdamW with betas 0.9 and 0.999, norm clipped to 1, a cosine down to 0."""

    shape: dict
    epochs: int
    batch: int  # sequences in a step
    lr: float
    warmup: int  # steps
    weight_decay: float


@dataclass(frozen=True)
class Profile:
    device: str
    dtype: str
    seq_len: int
    vocabulary: int  # of a tokenizer that is trained here
    teacher: Training
    student: Training
    seeds: tuple


PROFILES = {
    "gpu": Profile(
        "cuda",
        "bfloat16",
        128,
        16000,
        teacher=Training(shape(24, 1024, 8, 3072), epochs=4, batch=128, lr=3e-4, warmup=300, weight_decay=0.0),
        student=Training(shape(16, 512, 8, 1024), epochs=6, batch=32, lr=2.5e-4, warmup=200, weight_decay=0.1),
        seeds=(1, 2, 3),
    ),
    "test": Profile(
        "cpu",
        "float32",
        32,
        300,
        teacher=Training(shape(1, 32, 2, 64), epochs=1, batch=8, lr=3e-3, warmup=2, weight_decay=0.0),
        student=Training(shape(1, 16, 2, 32), epochs=1, batch=8, lr=3e-3, warmup=2, weight_decay=0.1),
        seeds=(1,),
    ),
}


def losses(seq_len):
    """{row: (title, keys of loss)}

    The published loss is 0.5 CE + 0.5 T^2 KL at T = 2. Its code divides the sum of the KL over all tokens by the number
    of sequences (KLDivLoss with "batchmean"), not by that of tokens as the cross-entropy, so that the KL of a sequence
    weighs as much as its tokens' mean times their number.
    """
    mixture = {
        "divergence": "forward_kl",
        "temperature": 2,
        "scale_by_temperature_squared": True,
        "hard_weight": 0.5,
    }
    return {
        "code": (
            "distilled, KL summed over a sequence, as in the published code",
            mixture | {"soft_weight": 0.5 * seq_len},
        ),
        "text": ("distilled, KL of a token, as the paper's formula reads", mixture | {"soft_weight": 0.5}),
        "labels": ("labels only", {"divergence": "none", "hard_weight": 1}),
    }
