"""patch_causal_lm: the losses of patched models against the plain ones, and what else a patched model does."""

import pytest
import torch
import torch.nn.functional as F

from distill_losses import LinearCrossEntropy, LinearJSD
from reference import divergence, reduced

transformers = pytest.importorskip("transformers")
from distill_losses.transformers import patch_causal_lm  # noqa: E402  needs transformers

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


def test_the_trainer_of_transformers(tmp_path):
    """Two runs of Trainer, plain and patched, with gradient accumulation."""
    pytest.importorskip("accelerate")
    rows = [{name: row for name, row in zip(batch(), rows)} for rows in zip(*(t.tolist() for t in batch().values()))]

    def losses(student):
        arguments = transformers.TrainingArguments(
            str(tmp_path),
            max_steps=3,
            per_device_train_batch_size=1,
            gradient_accumulation_steps=2,
            learning_rate=1e-2,
            logging_steps=1,
            use_cpu=True,
            save_strategy="no",
            report_to=[],
        )
        collate = transformers.default_data_collator
        trainer = transformers.Trainer(student, arguments, train_dataset=rows, data_collator=collate)
        trainer.train()
        return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]

    plain, fused = losses(model()), losses(patch_causal_lm(model()))
    assert len(plain) == 3 and len(set(plain)) == 3
    assert fused == pytest.approx(plain, rel=1e-3)
