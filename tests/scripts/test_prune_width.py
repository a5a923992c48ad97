"""scripts/prune_width.py against transformers: the student is the teacher with the other heads, neurons and experts
silenced, and without the other layers."""

import functools
import json

import pytest
import torch
import transformers
from safetensors.torch import load_file
from word_models import save_tokenizer

import multimodal_models
from model_shapes import NO_SPECIAL_TOKENS, randomise, shape

WORDS = ["<eos>"] + [f"w{number}" for number in range(63)]
HEADS, KV_HEADS, HEAD_DIM, NEURONS, LAYERS = 6, 3, 8, 48, 3
FAMILIES = {
    "llama": (transformers.LlamaConfig, {"attention_bias": True, "mlp_bias": True}),
    "mistral": (transformers.MistralConfig, {"sliding_window": None}),
    "qwen2": (transformers.Qwen2Config, {"tie_word_embeddings": True}),
    "qwen3": (transformers.Qwen3Config, {"tie_word_embeddings": True}),
    "gemma3": (transformers.Gemma3TextConfig, {"sliding_window": 8, "layer_types": ["sliding_attention"] * LAYERS}),
    "phi3": (transformers.Phi3Config, {"sliding_window": 8}),
    "smollm3": (transformers.SmolLM3Config, {}),
    "gemma2": (transformers.Gemma2Config, {"sliding_window": 8}),
    "ministral3": (transformers.Ministral3Config, {}),
    "exaone4": (transformers.Exaone4Config, {"sliding_window": 8, "sliding_window_pattern": 3}),
    "qwen3_5": (
        transformers.Qwen3_5TextConfig,
        {
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "linear_num_key_heads": 1,
            "linear_num_value_heads": 2,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 12,
        },
    ),
}


def config_of(kind, **keys):
    # The hidden size is a multiple of every number of heads below, on which transformers insists for Llama.
    sizes = shape(len(WORDS), 48, NEURONS, LAYERS, HEADS, KV_HEADS, head_dim=HEAD_DIM, initializer_range=0.3)
    return kind(**sizes | NO_SPECIAL_TOKENS | {"eos_token_id": 0} | keys)


def save(folder, config, seed, shard_size="1GB"):
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config)
    randomise(model)
    model.save_pretrained(folder, max_shard_size=shard_size)
    save_tokenizer(folder, WORDS)
    return folder


@pytest.fixture(scope="module")
def teachers(tmp_path_factory):
    return {
        family: save(
            tmp_path_factory.mktemp(family) / "teacher",
            config_of(kind, max_position_embeddings=64, **extra),
            seed=index,
            shard_size="20KB" if index % 2 else "1GB",
        )
        for index, (family, (kind, extra)) in enumerate(FAMILIES.items())
    }


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.jsonl"
    generator = torch.Generator().manual_seed(5)
    lines = [" ".join(WORDS[i] for i in torch.randint(0, 64, (40,), generator=generator)) for _ in range(30)]
    path.write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    return path


def load(folder):
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True
    )
    assert not any(report.values()), report
    return model.eval()


def kept_of(student):
    return json.loads((student / "kept.json").read_text())


def logits(model):
    with torch.no_grad():
        return model(torch.arange(40).reshape(2, 20), use_cache=False).logits


def silenced(teacher, kept):
    """The teacher whose dropped heads and neurons write nothing into the residual stream."""
    group = HEADS // KV_HEADS * HEAD_DIM
    layers = zip(teacher.get_decoder().layers, kept["kv_heads"], kept["neurons"], strict=True)
    with torch.no_grad():
        for layer, heads, neurons in layers:
            for head in set(range(KV_HEADS)) - set(heads or range(KV_HEADS)):  # None: of linear attention
                layer.self_attn.o_proj.weight[:, head * group : (head + 1) * group] = 0
            for neuron in set(range(NEURONS)) - set(neurons or range(NEURONS)):  # None: of experts
                layer.mlp.down_proj.weight[:, neuron] = 0
    return teacher


@pytest.mark.parametrize("family", FAMILIES)
def test_the_student_is_the_teacher_with_the_other_parts_silenced(tmp_path, teachers, text, script, family):
    student = tmp_path / "student"
    arguments = ("--teacher", teachers[family], "--out", student, "--text", text, "--tokens", 400)
    output = script("prune_width.py", *arguments, "--kv-heads", 2, "--intermediate", 20)
    assert "4 of 6 heads (2 of 3 key-value heads), 20 of 48 neurons" in output
    kept = kept_of(student)
    assert all(layer is None or len(layer) == 2 for layer in kept["kv_heads"])
    assert all(len(layer) == 20 for layer in kept["neurons"])
    model = load(student)
    assert model.config.num_attention_heads == 4 and model.config.num_key_value_heads == 2
    assert model.config.head_dim == HEAD_DIM and model.config.intermediate_size == 20
    expected = logits(silenced(load(teachers[family]), kept))
    torch.testing.assert_close(logits(model), expected, rtol=1e-4, atol=1e-4)
    assert (logits(load(teachers[family])) - expected).abs().max() > 0.05, "the dropped parts had a say"


@pytest.mark.parametrize("kind", [transformers.Olmo2Config, transformers.Olmo3Config])
def test_norms_over_all_heads_need_all_heads(tmp_path, text, script, kind):
    config = kind(**shape(len(WORDS), 48, NEURONS, 2, 6, 3, pad_token_id=None))
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "teacher")
    save_tokenizer(tmp_path / "teacher", WORDS)
    arguments = ("--teacher", tmp_path / "teacher", "--out", tmp_path / "student", "--text", text)
    message = script("prune_width.py", *arguments, "--kv-heads", 2, "--intermediate", 20, code=1)
    assert "--kv-heads: expected 3" in message and "over all heads at once" in message
    script("prune_width.py", *arguments, "--kv-heads", 3, "--intermediate", 20)
    assert load(tmp_path / "student").config.intermediate_size == 20


@pytest.mark.parametrize("spelling", multimodal_models.SPELLINGS)
def test_of_a_multimodal_teacher_the_text_is_pruned_and_the_other_parts_stay(tmp_path, text, script, spelling):
    config = config_of(transformers.LlamaConfig)
    teacher, student = tmp_path / "teacher", tmp_path / "student"
    multimodal_models.save(teacher, multimodal_models.llava(config), 1, spelling=spelling)
    save_tokenizer(teacher, WORDS)
    arguments = ("--teacher", teacher, "--out", student, "--text", text, "--tokens", 400)
    script("prune_width.py", *arguments, "--kv-heads", 2, "--intermediate", 20)
    pruned, report = multimodal_models.load(student)
    assert not any(report.values()), report
    assert pruned.config.text_config.num_attention_heads == 4 and pruned.config.text_config.intermediate_size == 20
    expected, _ = multimodal_models.load(teacher)
    silenced(expected, kept_of(student))
    results = [multimodal_models.with_image(model) for model in (pruned, expected)]
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)
    before, after = (multimodal_models.all_tensors(folder) for folder in (teacher, student))
    for name, values in before.items():
        if not multimodal_models.is_text(name):
            assert multimodal_models.same_bytes(values, after[name]), name


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    """A teacher with experts in all layers but the first."""
    experts = dict(moe_intermediate_size=24, num_experts=6, num_experts_per_tok=2, norm_topk_prob=True)
    config = config_of(transformers.Qwen3MoeConfig, num_hidden_layers=4, mlp_only_layers=[0], **experts)
    return save(tmp_path_factory.mktemp("mixture") / "teacher", config, seed=3)


def without_experts(layer, kept):
    """Makes the layer's router know the kept experts alone."""
    router = layer.mlp.gate

    def forward(hidden_states):
        scores = torch.nn.functional.linear(hidden_states, router.weight)
        dropped = sorted(set(range(router.weight.shape[0])) - set(kept))
        scores[:, dropped] = -float("inf")
        weights, chosen = scores.softmax(-1).topk(router.top_k, dim=-1)
        return scores, weights / weights.sum(-1, keepdim=True), chosen

    router.forward = forward


def test_experts_are_kept_by_use(tmp_path, mixture, text, script):
    student = tmp_path / "student"
    arguments = ("--teacher", mixture, "--out", student, "--text", text, "--tokens", 400)
    output = script("prune_width.py", *arguments, "--experts", 3, "--kv-heads", 2, "--intermediate", 20)
    assert "3 of 6 experts" in output
    kept = kept_of(student)
    assert kept["experts"][0] is None and kept["neurons"][1] is None
    assert all(len(experts) == 3 for experts in kept["experts"][1:])
    expected = load(mixture)
    used = [torch.zeros(6, dtype=torch.float64) for _ in range(4)]

    def count(module, inputs, output, use):
        use.index_add_(0, output[2].flatten(), output[1].flatten().double())

    for layer, use in zip(expected.model.layers[1:], used[1:]):
        layer.mlp.gate.register_forward_hook(functools.partial(count, use=use))
    words = [json.loads(line)["text"].split() for line in text.read_text().splitlines()]
    ids = torch.tensor([WORDS.index(word) for document in words for word in document][:400])
    with torch.no_grad():
        expected(ids[None])
    assert kept["experts"][1:] == [use.topk(3).indices.sort().values.tolist() for use in used[1:]]
    expected = silenced(load(mixture), kept)
    for layer, experts in zip(expected.model.layers[1:], kept["experts"][1:], strict=True):
        without_experts(layer, experts)
    torch.testing.assert_close(logits(load(student)), logits(expected), rtol=1e-4, atol=1e-4)


def test_layers_are_kept_by_their_influence(tmp_path, mixture, text, script):
    """A layer that changes next to nothing is the one that goes; the others keep their kind of MLP."""
    model = load(mixture)
    with torch.no_grad():
        model.model.layers[1].self_attn.o_proj.weight.mul_(1e-3)
        model.model.layers[1].mlp.experts.down_proj.mul_(1e-3)
    model.save_pretrained(tmp_path / "teacher")
    save_tokenizer(tmp_path / "teacher", WORDS)
    arguments = ("--teacher", tmp_path / "teacher", "--out", tmp_path / "student", "--text", text)
    assert "3 of 4 layers" in script("prune_width.py", *arguments, "--layers", 3)
    assert kept_of(tmp_path / "student")["layers"] == [0, 2, 3]
    del model.model.layers[1]
    model.config.num_hidden_layers = 3
    torch.testing.assert_close(logits(load(tmp_path / "student")), logits(model), rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def gemma4(tmp_path_factory):
    config = config_of(
        transformers.Gemma4TextConfig,
        num_hidden_layers=4,
        layer_types=["sliding_attention", "full_attention"] * 2,
        **dict(global_head_dim=2 * HEAD_DIM, num_global_key_value_heads=1, attention_k_eq_v=True),
        **dict(hidden_size_per_layer_input=0, sliding_window=8),
    )
    return save(tmp_path_factory.mktemp("gemma4") / "teacher", config, seed=4)


def test_layers_with_heads_of_their_own_size_keep_them(tmp_path, gemma4, text, script):
    arguments = ("--teacher", gemma4, "--text", text)
    script("prune_width.py", *arguments, "--out", tmp_path / "narrow", "--intermediate", 20)
    expected = silenced(load(gemma4), kept_of(tmp_path / "narrow") | {"kv_heads": [None] * 4})
    torch.testing.assert_close(logits(load(tmp_path / "narrow")), logits(expected), rtol=1e-4, atol=1e-4)
    message = script("prune_width.py", *arguments, "--out", tmp_path / "no", "--kv-heads", 2, code=1)
    assert "--kv-heads: cannot be given" in message and "(1, 3)" in message


def test_all_parts_give_the_teacher(tmp_path, teachers, text, script):
    arguments = ("--teacher", teachers["qwen3"], "--out", tmp_path / "student", "--text", text)
    script("prune_width.py", *arguments, "--kv-heads", KV_HEADS, "--intermediate", NEURONS)
    before, after = (load_file(folder / "model.safetensors") for folder in (teachers["llama"], tmp_path / "student"))
    assert torch.equal(logits(load(tmp_path / "student")), logits(load(teachers["qwen3"])))
    assert set(before) != set(after)  # the folders differ, so that the comparison above was of the right ones


def test_what_contributes_most_is_kept(tmp_path, teachers, text, script):
    """Neurons and heads whose output is scaled up by hand are those that stay."""
    folder = tmp_path / "teacher"
    model = load(teachers["llama"])
    strong_neurons, strong_head, group = [3, 11, 40], 1, HEADS // KV_HEADS * HEAD_DIM
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.down_proj.weight[:, strong_neurons] *= 100
            layer.self_attn.o_proj.weight[:, strong_head * group : (strong_head + 1) * group] *= 100
    model.save_pretrained(folder)
    save_tokenizer(folder, WORDS)
    arguments = ("--teacher", folder, "--out", tmp_path / "student", "--text", text)
    script("prune_width.py", *arguments, "--kv-heads", 1, "--intermediate", 3)
    kept = kept_of(tmp_path / "student")
    assert kept["neurons"] == [strong_neurons] * LAYERS
    assert kept["kv_heads"] == [[strong_head]] * LAYERS


BAD = {
    "experts of a teacher without": ("--experts 2", "--experts: expected a teacher with experts"),
    "too many layers": ("--layers 9", "--layers: expected a number from 1 to 3 (the teacher's)"),
    "too many heads": (
        "--kv-heads 4 --intermediate 8",
        "--kv-heads: expected a number from 1 to 3 (the teacher's), found 4",
    ),
    "no neurons": ("--kv-heads 1 --intermediate 0", "--intermediate: expected a number from 1 to 48"),
    "no text": ("--kv-heads 1 --intermediate 8 --text nowhere.jsonl", "nowhere.jsonl: No such"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_choice_is_refused_and_leaves_nothing(tmp_path, teachers, text, script, case):
    arguments, expected = BAD[case]
    arguments = arguments.split() + ([] if "--text" in arguments else ["--text", text])
    out = tmp_path / "student"
    error = script("prune_width.py", "--teacher", teachers["llama"], "--out", out, *arguments, code=1)
    assert expected in error
    assert not out.exists()


def test_numbers_of_heads_that_transformers_refuses_are_refused(tmp_path, teachers, text, script):
    folder = tmp_path / "teacher"
    model = load(teachers["llama"])
    config = model.config
    config.hidden_size, config.num_attention_heads, config.num_key_value_heads = 30, 6, 6
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    save_tokenizer(folder, WORDS)
    arguments = ("--teacher", folder, "--out", tmp_path / "student", "--text", text, "--intermediate", 8)
    assert "30" in script("prune_width.py", *arguments, "--kv-heads", 4, code=1)
    assert not (tmp_path / "student").exists()
