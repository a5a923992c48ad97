"""patch_causal_lm: the losses of patched models against the plain ones, and what else a patched model does."""

import copy
import functools
import inspect
import math

import pytest
import torch
import torch.nn.functional as F

from distill_losses import LinearCrossEntropy, LinearJSD
from reference import divergence, reduced

transformers = pytest.importorskip("transformers")
from distill_losses.transformers import patch_causal_lm, softcap_of  # noqa: E402  needs transformers

VOCAB = 61


def model(hidden=32, seed=1, kind="Llama", **options):
    torch.manual_seed(seed)
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=VOCAB,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        **options,
    )
    return getattr(transformers, f"{kind}ForCausalLM")(config)


def batch():
    torch.manual_seed(5)
    tokens = torch.randint(0, VOCAB, (3, 9))
    mask = torch.ones_like(tokens)
    mask[0, :3] = 0
    labels = tokens.clone()
    labels[:, :4] = -100
    return dict(input_ids=tokens, attention_mask=mask, labels=labels)


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("kind,options", [("Llama", {}), ("Qwen3", {"tie_word_embeddings": True}), ("Gemma2", {})])
@pytest.mark.parametrize("items", [None, 11])
def test_cross_entropy_as_the_model_had_it(kind, options, items):
    student = model(kind=kind, **options)
    expected = student(**batch(), num_items_in_batch=items)
    expected_gradients = gradients(student, expected.loss)
    found = patch_causal_lm(student)(**batch(), num_items_in_batch=items)
    assert found.logits is None
    torch.testing.assert_close(found.loss, expected.loss)
    torch.testing.assert_close(gradients(student, found.loss), expected_gradients, rtol=1e-4, atol=1e-6)


def test_distillation_from_a_wider_teacher():
    student, teacher, inputs = model(), model(hidden=48, seed=2), batch()
    logits, of_teacher = (
        m(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits.flatten(0, 1)
        for m in (student, teacher)
    )
    targets = F.pad(inputs["labels"][:, 1:], (0, 1), value=-100).flatten()
    expected = reduced(divergence(logits, of_teacher.detach(), 0.3), targets, "mean")
    expected_gradients = gradients(student, expected)
    patch_causal_lm(student, LinearJSD(beta=0.3), teacher)
    found = student(**inputs).loss
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradients(student, found), expected_gradients, rtol=1e-4, atol=1e-6)
    assert all(parameter.grad is None for parameter in teacher.parameters())
    assert not any("teacher" in name for name, _ in student.named_parameters())


def packed():
    """Two sequences of 4 and 5 tokens in one row; position_ids begin again, and there is no mask."""
    tokens = batch()["input_ids"][:1]
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]])
    labels = tokens.masked_fill(positions == 0, -100)
    return dict(input_ids=tokens, position_ids=positions, labels=labels)


def test_a_packed_batch_is_packed_for_the_teacher_too():
    """position_ids reach both sides: the loss is that of both logits on the packed row."""
    wide = dict(initializer_range=0.5)  # attention that is not almost uniform
    student, teacher, inputs = model(**wide), model(hidden=48, seed=2, **wide), packed()
    of_both = dict(input_ids=inputs["input_ids"], position_ids=inputs["position_ids"])
    logits, of_teacher = (m(**of_both).logits.flatten(0, 1) for m in (student, teacher))
    targets = F.pad(inputs["labels"][:, 1:], (0, 1), value=-100).flatten()
    expected = reduced(divergence(logits, of_teacher.detach(), 0.5), targets, "mean")
    patch_causal_lm(student, LinearJSD(), teacher)
    torch.testing.assert_close(student(**inputs).loss, expected)
    unpacked = student(input_ids=inputs["input_ids"], labels=inputs["labels"]).loss
    assert (unpacked - expected).abs() > 1e-2 * expected  # the positions matter


def test_the_teacher_gets_what_flash_attention_needs_for_packed_batches():
    student, teacher, inputs = model(), model(seed=2), batch()
    lengths = torch.tensor([0, 9, 18, 27], dtype=torch.int32)
    given = dict(cu_seq_lens_q=lengths, cu_seq_lens_k=lengths, max_length_q=9, max_length_k=9)
    seen = []
    for body in (student.model, teacher.model):
        body.register_forward_pre_hook(lambda _, args, kwargs: seen.append(kwargs), with_kwargs=True)
    patch_causal_lm(student, LinearJSD(), teacher)
    seen.clear()
    student(**inputs, **given)
    assert len(seen) == 2 and all(kwargs[name] is given[name] for kwargs in seen for name in given)


@pytest.mark.parametrize("name", ["inputs_embeds", "past_key_values", "token_type_ids"])
def test_an_input_that_the_teacher_would_not_get_is_refused(name):
    student = patch_causal_lm(model(), LinearJSD(), model(seed=2))
    with pytest.raises(ValueError, match=f"LlamaForCausalLM: expected inputs that .* both get.*, found {name}: the"):
        student(**batch(), **{name: torch.zeros(3, 9, 32)})
    student(**batch(), use_cache=False, output_hidden_states=True)  # changes nothing that the teacher sees


def test_logits_to_keep_is_refused_with_labels_and_kept_without():
    student, inputs = patch_causal_lm(model()), batch()
    with pytest.raises(ValueError, match="logits_to_keep: expected 0 in a call with labels, found 1"):
        student(**inputs, logits_to_keep=1)
    assert student(inputs["input_ids"], logits_to_keep=1).logits.shape[1] == 1


def test_labels_that_are_shifted_already():
    student, inputs = model(), batch()
    given = dict(inputs, shift_labels=inputs["labels"].flip(0))
    expected = student(**given).loss
    torch.testing.assert_close(patch_causal_lm(student)(**given).loss, expected)


def test_the_signature_and_the_order_of_arguments_are_the_models():
    student, inputs = model(), batch()
    signature = inspect.signature(student.forward)
    positions = torch.arange(9).flip(0).expand(3, 9)
    given = (inputs["input_ids"], inputs["attention_mask"], positions)
    expected = student(*given, labels=inputs["labels"], return_dict=False)[0]
    patch_causal_lm(student)
    assert inspect.signature(student.forward) == signature and "position_ids" in signature.parameters
    (found,) = student(*given, labels=inputs["labels"], return_dict=False)[:1]
    torch.testing.assert_close(found, expected)


def test_without_labels_a_patched_model_is_as_before():
    student, inputs = model(), batch()
    before = student(input_ids=inputs["input_ids"]).logits
    text = student.generate(inputs["input_ids"][1:2], max_new_tokens=4, do_sample=False)
    patch_causal_lm(student)
    assert torch.equal(student(input_ids=inputs["input_ids"]).logits, before)
    assert torch.equal(student.generate(inputs["input_ids"][1:2], max_new_tokens=4, do_sample=False), text)


def test_the_softcap_of_the_loss_must_be_the_models():
    gemma = model(kind="Gemma2")
    with pytest.raises(ValueError, match="softcap: expected 30.0, as the model's config says, found None"):
        patch_causal_lm(gemma, LinearCrossEntropy())
    with pytest.raises(ValueError, match="teacher_softcap: expected 30.0"):
        patch_causal_lm(model(), LinearJSD(), gemma)


def test_scaled_logits_are_refused():
    with pytest.raises(ValueError, match="GraniteForCausalLM: logits_scaling: expected 1.0, found 8.0"):
        patch_causal_lm(model(kind="Granite", logits_scaling=8.0))


@pytest.mark.parametrize(
    "kind,own", [("Bert", {}), ("Roberta", {}), ("Electra", {"embedding_size": 32}), ("Electra", {})]
)
def test_a_head_that_is_not_one_linear_layer_is_refused(kind, own):
    """A dense layer and a LayerNorm stand before the linear one that get_output_embeddings names."""
    options = dict(vocab_size=VOCAB, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
    config = getattr(transformers, f"{kind}Config")(**options, **own, is_decoder=True)
    name = {"Bert": "BertLMHeadModel"}.get(kind, f"{kind}ForCausalLM")
    other = getattr(transformers, name)(config)
    message = f"{name}: expected (logits that are the lm_head's product|one linear layer as its lm_head)"
    with pytest.raises(ValueError, match=message):
        patch_causal_lm(other)
    with pytest.raises(ValueError, match=message):
        patch_causal_lm(model(), LinearJSD(), other)


def recurrent_gemma(**options):
    torch.manual_seed(1)
    sizes = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4, lru_width=32)
    return transformers.RecurrentGemmaForCausalLM(
        transformers.RecurrentGemmaConfig(
            vocab_size=VOCAB, attention_window_size=16, num_key_value_heads=2, **sizes, **options
        )
    )


def xlstm(**options):
    torch.manual_seed(1)
    sizes = dict(hidden_size=128, num_hidden_layers=1, num_heads=2, chunk_size=9)
    return transformers.xLSTMForCausalLM(transformers.xLSTMConfig(vocab_size=VOCAB, mode="train", **sizes, **options))


@pytest.mark.parametrize(
    "make,key", [(recurrent_gemma, "logits_soft_cap"), (xlstm, "output_logit_soft_cap")], ids=["recurrent", "xlstm"]
)
def test_caps_by_other_names(make, key):
    """With a cap that small logits feel, the loss is the one that the model had."""
    capped, inputs = make(**{key: 0.05}), batch()
    inputs = {name: value[1:] for name, value in inputs.items()}
    assert softcap_of(capped) == 0.05
    expected = capped(**inputs).loss
    torch.testing.assert_close(patch_causal_lm(capped)(**inputs).loss, expected, rtol=1e-5, atol=0)
    with pytest.raises(ValueError, match="softcap: expected 0.05, as the model's config says, found None"):
        patch_causal_lm(make(**{key: 0.05}), LinearCrossEntropy())


class ChangedLlama(transformers.LlamaForCausalLM):
    """A model that does what `change` says to its output."""

    def forward(self, input_ids=None, attention_mask=None, labels=None, **kwargs):
        output = super().forward(input_ids, attention_mask, labels=labels, **kwargs)
        self.change(output)
        return output


def changed(change):
    plain = model()
    other = ChangedLlama(plain.config)
    other.change = change
    return other


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_cap_that_no_config_names_shows_although_logits_are_small(dtype):
    def cap(output):
        output.logits = 30 * torch.tanh(output.logits / 30)

    with pytest.raises(ValueError, match="ChangedLlama: expected logits that are the lm_head's product"):
        patch_causal_lm(changed(cap).to(dtype))
    patch_causal_lm(changed(lambda output: None).to(dtype))  # the same without the cap


def test_a_loss_with_another_term_is_refused():
    def add(output):
        if output.loss is not None:
            output.loss = output.loss * 1.5

    with pytest.raises(ValueError, match="ChangedLlama: expected a loss that is the cross-entropy of each next token"):
        patch_causal_lm(changed(add))
    patch_causal_lm(model(), LinearJSD(), changed(add))  # a teacher's loss does not matter


def test_the_auxiliary_loss_of_routers_is_refused():
    experts = dict(num_local_experts=2, num_experts_per_tok=1)
    message = "MixtralForCausalLM: output_router_logits: expected False, found True"
    with pytest.raises(ValueError, match=message):
        patch_causal_lm(model(kind="Mixtral", output_router_logits=True, **experts))
    student, inputs = model(kind="Mixtral", **experts), batch()
    expected = student(**inputs).loss
    torch.testing.assert_close(patch_causal_lm(student)(**inputs).loss, expected)
    with pytest.raises(ValueError, match=message):
        student(**inputs, output_router_logits=True)


def test_an_adapter_around_the_lm_head_is_refused():
    student = model()
    student.lm_head.base_layer = torch.nn.Identity()  # as the layers of PEFT have
    with pytest.raises(ValueError, match="expected one linear layer as its lm_head, found a Linear, an adapter"):
        patch_causal_lm(student)


def test_the_check_leaves_the_modes_as_they_were():
    student, teacher = model().train(), model(seed=2).train()
    student.model.layers[0].eval()
    modes = [module.training for module in student.modules()]
    patch_causal_lm(student, LinearJSD(), teacher)
    assert [module.training for module in student.modules()] == modes and teacher.training


def test_a_model_without_values_is_checked_at_its_first_loss():
    with torch.device("meta"):
        good, bad = model(), ChangedLlama(model().config)
    bad.change = lambda output: setattr(output, "logits", 2 * output.logits)
    for student in (good, bad):
        patch_causal_lm(student).to_empty(device="cpu")
        student.load_state_dict(model().state_dict())
        student.model.rotary_emb = model().model.rotary_emb  # a buffer that is no part of the state
    torch.testing.assert_close(good(**batch()).loss, model()(**batch()).loss)
    with pytest.raises(ValueError, match="ChangedLlama: expected logits"):
        bad(**batch())


@pytest.fixture
def one_rank():
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("this torch has no Gloo")
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


def test_a_sharded_model_is_checked_at_its_first_loss(one_rank):
    """FSDP2's parameters are whole only inside the forward; patched before or after sharding, or twice."""
    from torch.distributed.fsdp import FSDPModule, fully_shard

    def sharded(student):
        for layer in student.model.layers:
            fully_shard(layer, mesh=one_rank)
        return fully_shard(student, mesh=one_rank)

    loss, teacher, inputs = LinearJSD(), model(hidden=48, seed=2), batch()
    expected = patch_causal_lm(model(), loss, teacher)(**inputs).loss
    before = sharded(patch_causal_lm(model(), loss, teacher))
    after = patch_causal_lm(sharded(model()), loss, teacher)
    twice = patch_causal_lm(sharded(patch_causal_lm(model())), loss, teacher)
    for student in (before, after, twice):
        assert isinstance(student, FSDPModule)
        found = student(**inputs).loss
        found.backward()
        torch.testing.assert_close(found, expected)
    doubled = changed(lambda output: setattr(output, "logits", 2 * output.logits))
    with pytest.raises(ValueError, match="ChangedLlama: expected logits"):
        patch_causal_lm(sharded(doubled))(**inputs)


def copies(student):
    """A deep copy, and the copy that DataParallel makes of a model for each device, both with an lm_head of zeros."""
    replica = student._replicate_for_data_parallel()
    for other in (copy.deepcopy(student), replica):
        other.lm_head = torch.nn.Linear(32, VOCAB, bias=False)
        torch.nn.init.zeros_(other.lm_head.weight)
        yield other


def test_a_copy_computes_with_its_own_weights():
    student, inputs = patch_causal_lm(model()), batch()
    expected = student(inputs["input_ids"]).logits
    for other in copies(student):
        assert other(inputs["input_ids"]).logits.abs().max() == 0
        torch.testing.assert_close(other(**inputs).loss.item(), math.log(VOCAB))
    assert torch.equal(student(inputs["input_ids"]).logits, expected)


def test_a_copy_of_a_model_that_was_given_a_forward_of_its_own():
    """As accelerate gives one to a model that it spreads over devices."""
    student, inputs = model(), batch()
    student.forward = functools.partial(type(student).forward, student)
    patch_causal_lm(student)
    other = copy.deepcopy(student)
    torch.nn.init.zeros_(other.lm_head.weight)
    assert other(input_ids=inputs["input_ids"]).logits.abs().max() == 0
    assert student(input_ids=inputs["input_ids"]).logits.abs().max() > 0
    assert other(**inputs).logits is None


def test_a_patched_model_is_saved_under_the_name_of_its_class(tmp_path):
    student, inputs = patch_causal_lm(model()), batch()
    assert isinstance(student, transformers.LlamaForCausalLM)
    student.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(loaded) is transformers.LlamaForCausalLM
    torch.testing.assert_close(loaded(**inputs).loss, student(**inputs).loss)


def test_the_last_patch_counts():
    student, inputs = model(), batch()
    expected = student(**inputs).loss
    patch_causal_lm(student, LinearJSD(), model(seed=2))
    torch.testing.assert_close(patch_causal_lm(student)(**inputs).loss, expected)
    assert student(inputs["input_ids"]).logits is not None
