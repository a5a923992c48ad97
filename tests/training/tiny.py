"""Tiny random models, token shards and runs of the distill program for the tests of this folder."""

import json
import os
import socket
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import program_runs
from model_files import changed_copy
from model_shapes import NO_SPECIAL_TOKENS, shape
from token_shard import write_shard

REPOSITORY = Path(__file__).resolve().parents[2]
SUCCESS, RUNTIME_FAILURE, BAD_INPUT, STOPPED_BY_SIGNAL, DOES_NOT_FIT = range(5)  # exit codes
DEVICE = os.environ.get("DISTILL_TEST_DEVICE", "cpu")  # cuda: the same tests on GPUs (scripts/test_gpu.sh)
RANKS = 3 if DEVICE == "cpu" else 2  # of tests that take several, whatever their number
# For tests that take minutes: they run where DISTILL_LONG_TESTS is set.
LONG = pytest.mark.skipif(not os.environ.get("DISTILL_LONG_TESTS"), reason="long: set DISTILL_LONG_TESTS=1")
# For tests of resident pages: the address sanitizer, which scripts/test.sh asan announces, keeps what is freed.
PAGES = pytest.mark.skipif(
    "detect_leaks" in os.environ.get("ASAN_OPTIONS", ""), reason="resident pages under a sanitizer"
)
VOCAB = 211
TEACHER_VOCAB = 224  # the same tokens, padded further


def binary():
    build = os.environ.get("DISTILL_BUILD", REPOSITORY / "build" / "release")
    return os.environ.get("DISTILL_BIN", str(Path(build) / "apps" / "distill" / "distill"))


def free_port():
    """A port of 127.0.0.1 that nobody listens on, as MASTER_PORT."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def run_ranks(paths, folders=None):
    """(exit code, standard error) of each rank, rank r with the configuration paths[r] in folders[r]. Nothing starts
    the ranks that would end one when another fails."""
    need_devices(len(paths))
    launcher = {"WORLD_SIZE": str(len(paths)), "LOCAL_WORLD_SIZE": str(len(paths))}
    launcher |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    launcher = environment() | launcher
    jobs = [
        start(path, cwd=folder, env=launcher | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank, (path, folder) in enumerate(zip(paths, folders or [None] * len(paths), strict=True))
    ]
    try:
        errors = [job.communicate(timeout=100)[1] for job in jobs]
    finally:
        for job in jobs:
            job.kill()
    return [(job.returncode, error) for job, error in zip(jobs, errors)]


def expect_refused(folder, config, says):
    """A run that ends before its first step, with each of these texts."""
    done = distill("--config", write_config(folder, config), code=BAD_INPUT)
    for text in says:
        assert text in done.stderr
    assert not (folder / "run" / "metrics.jsonl").exists()


def expect_failure(folder, config, says):
    """A run that ends while it trains, with each of these texts."""
    done = distill("--config", write_config(folder, config), code=RUNTIME_FAILURE)
    for text in says:
        assert text in done.stderr, done.stderr


def expect_folder_refused(folder, pair, shard, case):
    """A copy of the student's folder that is wrong. `case`: a function that changes its tensors (None: they stay), keys
    of its config.json with other values, and texts of the error."""
    change, keys, says = case
    student, teacher = pair
    wrong = changed_copy(student, folder / "student", change, **keys)
    expect_refused(folder, base_config(folder, wrong, teacher, shard), says)


def need_devices(ranks):
    """Skips a test that needs more GPUs than there are."""
    if DEVICE == "cuda" and ranks > torch.cuda.device_count():
        pytest.skip(f"needs {ranks} GPUs, {torch.cuda.device_count()} are visible")


YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}


def half_windows(layers):
    """Every other layer has a window of 9 tokens, the last one has none."""
    types = ["full_attention" if (layers - i) % 2 else "sliding_attention" for i in range(layers)]
    return {"layer_types": types, "sliding_window": 9}


def phi3_keys(layers, hidden):
    pairs = hidden // 16  # that are rotated: half of a head
    factors = {
        name: [base + 0.5 * i for i in range(pairs)] for name, base in (("short_factor", 1.0), ("long_factor", 3.0))
    }
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": 0.5} | factors
    return {
        "head_dim": hidden // 4,
        "rope_parameters": rope,
        "original_max_position_embeddings": 16,
        "sliding_window": 9,
    }


# The configuration class of each family, and its keys beside those of make_model by the number of layers and the width.
# Windows and original contexts are shorter than the tests' sequences of 32 tokens.
FAMILIES = {
    "llama": (transformers.LlamaConfig, lambda layers, hidden: {}),
    "qwen3": (transformers.Qwen3Config, lambda layers, hidden: {}),
    "exaone4": (
        transformers.Exaone4Config,
        lambda layers, hidden: {"sliding_window": None, "layer_types": ["full_attention"] * layers},
    ),
    "exaone4_windows": (transformers.Exaone4Config, lambda layers, hidden: half_windows(layers)),
    "qwen2": (
        transformers.Qwen2Config,
        lambda layers, hidden: {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
    ),
    "olmo2": (transformers.Olmo2Config, lambda layers, hidden: {}),
    "mistral": (transformers.MistralConfig, lambda layers, hidden: {"sliding_window": 9}),
    "olmo3": (
        transformers.Olmo3Config,
        lambda layers, hidden: (
            half_windows(layers)
            | {"rope_parameters": {"full_attention": dict(YARN), "sliding_attention": {"rope_type": "default"}}}
        ),
    ),
    "ministral3": (
        transformers.Ministral3Config,
        lambda layers, hidden: {"rope_parameters": YARN | {"llama_4_scaling_beta": 0.3}},
    ),
    "gemma3": (
        transformers.Gemma3TextConfig,
        lambda layers, hidden: (
            half_windows(layers)
            | {"query_pre_attn_scalar": 24, "final_logit_softcapping": 3.0}
            | {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 4.0}}}
        ),
    ),
    "gemma2": (
        transformers.Gemma2Config,
        lambda layers, hidden: (
            half_windows(layers)
            | {"query_pre_attn_scalar": 24, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}
        ),
    ),
    "gemma4": (
        transformers.Gemma4TextConfig,
        lambda layers, hidden: (
            half_windows(layers)
            | {"global_head_dim": 32, "num_global_key_value_heads": 1, "attention_k_eq_v": True}
            | {"final_logit_softcapping": 3.0, "hidden_size_per_layer_input": 0}
        ),
    ),
    "smollm3": (transformers.SmolLM3Config, lambda layers, hidden: {"no_rope_layers": [1, 0, 1][:layers]}),
    "phi3": (transformers.Phi3Config, phi3_keys),
    # A layer with a delta rule, and one with attention.
    "qwen3_5": (
        transformers.Qwen3_5TextConfig,
        lambda layers, hidden: {
            "layer_types": ["linear_attention"] * (layers - 1) + ["full_attention"],
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 12,
        },
    ),
    "qwen3_5_moe": (
        transformers.Qwen3_5MoeTextConfig,
        lambda layers, hidden: {
            "layer_types": ["linear_attention"] * (layers - 1) + ["full_attention"],
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 2,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 16,
        },
    ),
    # Every other layer has experts.
    "qwen3_moe": (
        transformers.Qwen3MoeConfig,
        lambda layers, hidden: {
            "num_experts": 5,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
            "decoder_sparse_step": 2,
            "router_aux_loss_coef": 0.05,
            "output_router_logits": True,
        },
    ),
}


def make_model(folder, family, seed, tied, vocab=VOCAB, hidden=48, layers=2):
    """Writes a random model in fp32; weights larger than usual, so that its predictions are far from uniform."""
    kind, keys = FAMILIES[family]
    sizes = shape(vocab, hidden, 2 * hidden, layers, 4, 2, head_dim=16, max_position_embeddings=256)
    sizes |= dict(tie_word_embeddings=tied, initializer_range=0.15) | NO_SPECIAL_TOKENS
    config = kind(**(sizes | keys(layers, hidden)))
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:  # norms that do not all multiply by one
                of_delta = name.endswith(("linear_attn.norm.weight", "A_log", "dt_bias"))
                is_centred = family in ("gemma2", "gemma3") or (family.startswith("qwen3_5") and not of_delta)
                parameter.normal_(0.0 if is_centred else 1.0, 0.2)
            if family == "gemma4" and name.endswith("k_norm.weight"):
                parameter.mul_(parameter.numel() ** -0.5)  # Gemma 4 leaves the scale of the scores to its norms
        for name, buffer in model.named_buffers():
            if name.endswith("layer_scalar"):
                buffer.normal_(1.0, 0.2)
    model.save_pretrained(folder)
    return str(folder)


def random_documents(seed, lengths, loss_share=0.6):
    """Random tokens; the loss mask of each document is ragged, with whole spans and whole documents out of it."""
    random = np.random.default_rng(seed)
    documents = []
    for index, length in enumerate(lengths):
        in_loss = random.random(length) < loss_share
        in_loss[: random.integers(0, length)] = False  # a prompt
        if index % 7 == 3:
            in_loss[:] = False
        documents.append((random.integers(0, VOCAB, length), in_loss))
    return documents


def make_shard(path, documents):
    write_shard(path, documents, VOCAB)
    return str(path)


def base_config(folder, student, teacher, shard, /, **sections):
    """A config as a nested dictionary; `sections` are merged over the defaults of these tests: one rank, also where
    several GPUs are visible. A test that needs more GPUs than there are is skipped here."""
    config = {
        "student": {"path": student},
        "teacher": {"path": teacher},
        "data": {"train": [{"path": shard}], "seq_len": 32, "packing": "concat", "shuffle": False},
        "loss": {"divergence": "jsd", "beta": 0.5, "hard_weight": 0.5, "soft_weight": 1.0},
        "train": {"steps": 20, "micro_batch_size": 2, "global_batch_size": 8, "device": DEVICE, "dtype": "float32"},
        "optimizer": {"lr": 2e-3, "weight_decay": 0.1, "max_grad_norm": 2.0},
        "scheduler": {"type": "cosine", "warmup_steps": 3, "min_lr_ratio": 0.1},
        "run": {"dir": str(folder / "run"), "progress": "none"},
    }
    for section, values in sections.items():
        config.setdefault(section, {}).update(values)
    if config["scheduler"]["type"] == "constant":
        config["scheduler"].pop("min_lr_ratio", None)  # a key that has no effect is refused
    if DEVICE == "cuda":
        config.setdefault("parallel", {}).setdefault("processes", 1)
    need_devices(config.get("parallel", {}).get("processes", 1))
    return config


def write_config(folder, config):
    path = Path(folder) / "config.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(config, indent=2))  # JSON is YAML
    return str(path)


def environment(threads=1):
    """Tiny tensors are fastest on one thread, and where the machine is busy, with threads that do not spin."""
    return os.environ | {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"}


def distill(*arguments, code=SUCCESS, threads=1):
    """Runs the program to its end and checks its exit code, which is `code`, or one of a tuple."""
    done = program_runs.run_program([binary(), *arguments], env=environment(threads))
    assert done.returncode in (code if isinstance(code, tuple) else (code,)), (
        f"distill {' '.join(map(str, arguments))}: expected exit code {code}, found {done.returncode}\n"
        f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    )
    return done


def start(path, *flags, **options):
    """A process of the program with the configuration `path`; options as those of subprocess.Popen."""
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True, "env": environment()}
    return subprocess.Popen([binary(), "--config", path, *map(str, flags)], **streams | options)


def plan(folder, config, *flags, **options):
    """What `distill plan --json` says."""
    return json.loads(distill("plan", "--config", write_config(folder, config), "--json", *flags, **options).stdout)


def train(folder, config, *flags, **options):
    """Trains and returns the run folder."""
    distill("--config", write_config(folder, config), *flags, **options)
    return Path(config["run"]["dir"])


def evaluate(folder, config, **overrides):
    """`distill eval`; overrides such as student_path="..." become --set student.path=..."""
    sets = [part for key, value in overrides.items() for part in ("--set", f"{key.replace('_', '.', 1)}={value}")]
    return json.loads(distill("eval", "--config", write_config(Path(folder) / "eval", config), *sets, "--json").stdout)


def read_metrics(run):
    """(step records, evaluation records) of a run folder."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "eval" not in line and "round" not in line]
    return steps, [line for line in lines if "eval" in line]


def read_rounds(run):
    """Records of on-policy rounds of a run folder."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "round" in line]


def load_weights(folder):
    from safetensors.torch import load_file

    return load_file(Path(folder) / "model.safetensors")


def relative_difference(found, expected, without_largest=0):
    """||found - expected|| / ||expected|| over the elements of all tensors.

    `without_largest`: number of elements with the largest differences that the numerator leaves out.
    """
    assert set(found) == set(expected)
    squares = torch.cat([(found[name].double() - expected[name].double()).square().flatten() for name in expected])
    difference = squares.sort().values[: len(squares) - without_largest].sum()
    return float((difference / sum(value.double().square().sum() for value in expected.values())).sqrt())
