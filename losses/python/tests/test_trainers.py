"""Patched models in the Trainer of transformers and in TRL's: batches without labels, metrics that need logits, and
trainers that would compute another loss in the place of the patched one."""

import os

import pytest
import torch
import torch.nn.functional as F

from distill_losses import LinearCrossEntropy, LinearJSD

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
from distill_losses.transformers import patch_causal_lm  # noqa: E402  needs transformers

VOCAB = 61
KINDS = ["CE", "JSD"]


def model(seed=0):
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=32,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
    )
    return transformers.LlamaForCausalLM(config)


def patched(kind, **options):
    if kind == "CE":
        return patch_causal_lm(model(), **options)
    return patch_causal_lm(model(), LinearJSD(weight_hard_loss=0.5), model(1), **options)


def rows(empty=4, count=8):
    """Records, of which the first `empty` have no label."""
    torch.manual_seed(3)
    tokens = torch.randint(2, VOCAB, (count, 6)).tolist()
    labels = [[-100] * 6 if i < empty else [-100, -100, *row[2:]] for i, row in enumerate(tokens)]
    return [dict(input_ids=row, labels=y, attention_mask=[1] * 6) for row, y in zip(tokens, labels)]


class InOrder(transformers.Trainer):
    def _get_train_sampler(self, *_, **__):
        return torch.utils.data.SequentialSampler(self.train_dataset)


def trainer(student, folder, kind=InOrder, records=None, arguments=transformers.TrainingArguments, more=(), **options):
    settings = dict(
        max_steps=2,
        per_device_train_batch_size=2,
        per_device_eval_batch_size=4,
        gradient_accumulation_steps=2,
        learning_rate=1e-2,
        logging_steps=1,
        use_cpu=True,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    records = rows() if records is None else records
    return kind(
        student,
        arguments(str(folder), **{**settings, **options}),
        train_dataset=records,
        eval_dataset=records,
        data_collator=transformers.default_data_collator,
        **dict(more),
    )


def logged(run, name="loss"):
    return [entry[name] for entry in run.state.log_history if name in entry]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{}, {"gradient_accumulation_steps": 1}, {"average_tokens_across_devices": False}])
def test_a_step_without_labels_changes_nothing(kind, options, tmp_path):
    student = patched(kind)
    before = {name: p.detach().clone() for name, p in student.named_parameters()}
    run = trainer(student, tmp_path, max_steps=1, weight_decay=0.0, **options)
    run.train()
    assert logged(run) == [0.0] and logged(run, "grad_norm") == [0.0]
    assert all(torch.equal(p, before[name]) for name, p in student.named_parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_the_steps_after_one_without_labels_train(kind, tmp_path):
    """As the run that begins with them, since AdamW's first step has no moments; the loss is one of labels."""
    student = patched(kind)
    run = trainer(student, tmp_path, max_steps=4)
    run.train()
    losses = logged(run)
    assert losses[0] == losses[2] == 0.0 and losses[1] > losses[3] > 0.1
    assert all(p.isfinite().all() for p in student.parameters())


@pytest.mark.parametrize("empty", [False, True])
def test_a_run_has_the_losses_of_the_plain_model(empty, tmp_path):
    """Each step has two micro-batches; if `empty`, one of them has no label."""
    records = [row for pair in zip(rows(8 if empty else 0), rows(0)) for row in pair]
    records = [records[i] for i in (0, 2, 1, 3, 4, 6, 5, 7)]

    def losses(student):
        run = trainer(student, tmp_path, records=records)
        run.train()
        return logged(run)

    plain, fused = losses(model()), losses(patched("CE"))
    assert len(set(plain)) == 2 and fused == pytest.approx(plain, rel=1e-4)


def accuracy(prediction):
    logits, labels = torch.tensor(prediction.predictions), torch.tensor(prediction.label_ids)
    hit = (logits[:, :-1].argmax(-1) == labels[:, 1:]) & (labels[:, 1:] != -100)
    return {"hits": hit.sum().item(), "sum": logits.double().sum().item()}


MISSING = "LlamaForCausalLM: a call with labels has no logits: distill_losses.transformers.patch_causal_lm makes the .*"


@pytest.mark.parametrize("kind", KINDS)
def test_metrics_that_need_logits_are_an_error_that_names_the_patch(kind, tmp_path):
    message = MISSING + "eval_logits=True.*prediction_loss_only=True"
    run = trainer(patched(kind), tmp_path, more=dict(compute_metrics=accuracy))
    with pytest.raises(RuntimeError, match=message):
        run.evaluate()
    with pytest.raises(RuntimeError, match=message):
        run.predict(run.eval_dataset)
    run = trainer(patched(kind), tmp_path, eval_strategy="steps", eval_steps=1, more=dict(compute_metrics=accuracy))
    with pytest.raises(RuntimeError, match=message):
        run.train()
    first = dict(compute_metrics=accuracy, preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1))
    for options in ({}, {"batch_eval_metrics": True, "eval_accumulation_steps": 1}):
        if options:
            first["compute_metrics"] = lambda prediction, compute_result: accuracy(prediction)
        with pytest.raises(RuntimeError, match=message):
            trainer(patched(kind), tmp_path, more=first, **options).evaluate()


@pytest.mark.parametrize("kind", KINDS)
def test_an_evaluation_of_the_loss_alone_works(kind, tmp_path):
    student = patched(kind)
    expected = trainer(student, tmp_path).evaluate()["eval_loss"]
    assert expected > 0.1
    for options in ({}, {"bf16": True}):
        run = trainer(student, tmp_path, prediction_loss_only=True, more=dict(compute_metrics=None), **options)
        assert run.evaluate()["eval_loss"] == pytest.approx(expected, rel=1e-2)
        assert run.predict(run.eval_dataset).predictions is None
    run = trainer(student, tmp_path, records=rows(8))
    assert run.evaluate()["eval_loss"] == 0


@pytest.mark.parametrize("kind", KINDS)
def test_with_eval_logits_the_metrics_are_those_of_the_plain_model(kind, tmp_path):
    plain = trainer(model(), tmp_path, records=rows(0), more=dict(compute_metrics=accuracy)).evaluate()
    student = patched(kind, eval_logits=True)
    run = trainer(student, tmp_path, records=rows(0), more=dict(compute_metrics=accuracy))
    found = run.evaluate()
    assert found["eval_hits"] == plain["eval_hits"] and found["eval_sum"] == pytest.approx(plain["eval_sum"], rel=1e-5)
    if kind == "CE":
        assert found["eval_loss"] == pytest.approx(plain["eval_loss"], rel=1e-5)
    batch = {name: torch.tensor([row[name] for row in rows()]) for name in rows()[0]}
    assert student.train()(**batch).logits is None
    with torch.no_grad():
        assert student(**batch).logits is None
    assert student.eval()(**batch).logits is None


def test_eval_logits_are_capped_as_the_models():
    torch.manual_seed(0)
    sizes = dict(hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, head_dim=8)
    gemma = transformers.Gemma2ForCausalLM(
        transformers.Gemma2Config(vocab_size=VOCAB, num_key_value_heads=1, final_logit_softcapping=0.05, **sizes)
    )
    tokens = torch.arange(2, 8)[None]
    with torch.no_grad():
        expected = gemma.eval()(tokens).logits
        found = patch_causal_lm(gemma, eval_logits=True)(tokens, labels=tokens).logits
    torch.testing.assert_close(found, expected)


def test_any_use_of_the_missing_logits_is_the_error():
    student = patched("CE").eval()
    tokens = torch.arange(2, 8)[None]
    with torch.no_grad():
        output = student(tokens, labels=tokens)
    logits = output.logits
    uses = [
        lambda: logits.argmax(-1),
        lambda: logits[:, :-1],
        lambda: logits.shape,
        lambda: logits.float(),
        lambda: logits.cpu().numpy(),
        lambda: logits + 1,
        lambda: torch.softmax(logits, -1),
        lambda: torch.cat([logits, logits]),
        lambda: F.cross_entropy(logits, tokens[0]),
        lambda: logits.size(),
        lambda: len(logits),
        lambda: list(logits),
        lambda: logits.tolist(),
        lambda: output["logits"].detach(),
        lambda: output.to_tuple()[1].detach(),
        lambda: student(tokens, labels=tokens, return_dict=False)[1].detach(),
    ]
    for use in uses:
        with torch.no_grad(), pytest.raises(RuntimeError, match=MISSING):
            use()
    assert repr(logits) == "MissingLogits()" and logits.dtype == torch.float32 and logits.to("cpu") is logits


def test_a_trainer_that_takes_the_labels_away_is_refused(tmp_path):
    message = (
        "LlamaForCausalLM: expected a call that computes the loss given to patch_causal_lm.*num_items_in_batch came"
    )
    own = dict(compute_loss_func=lambda output, labels, num_items_in_batch: output.logits.sum() * 0)
    smoothed = patch_causal_lm(model(), LinearCrossEntropy(lse_square_scale=1e-3))
    for run in (
        trainer(patched("JSD"), tmp_path, label_smoothing_factor=0.1),
        trainer(patched("JSD"), tmp_path, more=own),
        trainer(smoothed, tmp_path, label_smoothing_factor=0.1),
    ):
        with pytest.raises(ValueError, match=message):
            run.train()
    trainer(patched("CE"), tmp_path, label_smoothing_factor=0.1).train()  # the loss of the plain model


def test_a_forward_that_another_library_sets_is_refused_where_it_is_another_loss():
    tokens = torch.arange(2, 8)[None]

    def replaced(student):
        base = type(student).__mro__[1].forward
        student.forward = lambda *args, **kwargs: base(student, *args, **kwargs)
        return student

    with pytest.raises(ValueError, match="LlamaForCausalLM: expected a call .*: the model was given another forward"):
        replaced(patched("JSD"))(input_ids=tokens, labels=tokens)
    assert replaced(patched("JSD"))(input_ids=tokens).logits is not None
    expected = patched("CE")(input_ids=tokens, labels=tokens).loss
    torch.testing.assert_close(replaced(patched("CE"))(input_ids=tokens, labels=tokens).loss, expected)
    # A forward around ours, as accelerate sets for mixed precision.
    student = patched("JSD")
    inner, expected = student.forward, patched("JSD")(input_ids=tokens, labels=tokens).loss
    student.forward = lambda *args, **kwargs: inner(*args, **kwargs)
    torch.testing.assert_close(student(input_ids=tokens, labels=tokens).loss, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_inputs_made_under_inference_mode(kind):
    tokens = torch.arange(2, 14).view(2, 6)
    inputs = dict(input_ids=tokens, attention_mask=torch.ones_like(tokens), labels=tokens)
    with torch.inference_mode():
        made = {name: tensor.clone() for name, tensor in inputs.items()}
    losses = []
    for given in (inputs, made):
        student = patched(kind)
        loss = student(**given, num_items_in_batch=given["labels"].ne(3).sum()).loss
        loss.backward()
        losses.append((loss.detach(), {name: p.grad for name, p in student.named_parameters()}))
    torch.testing.assert_close(losses[0], losses[1])
    student = patched(kind).eval()
    with torch.inference_mode():
        assert student(**made).loss > 0


def test_models_made_under_inference_mode():
    with torch.inference_mode():
        student, teacher = model(), model(1)
    with pytest.raises(ValueError, match=r"expected parameters that can be trained, found .*torch.inference_mode\(\)"):
        patch_causal_lm(student)
    tokens = torch.arange(2, 8)[None]
    expected = patch_causal_lm(model(), LinearJSD(), model(1))(input_ids=tokens, labels=tokens).loss
    loss = patch_causal_lm(model(), LinearJSD(), teacher)(input_ids=tokens, labels=tokens).loss
    loss.backward()
    torch.testing.assert_close(loss, expected)


def test_the_loss_must_fit_the_models():
    with pytest.raises(ValueError, match="loss: expected a LinearCrossEntropy without a teacher, found a LinearJSD"):
        patch_causal_lm(model(), LinearJSD())
    with pytest.raises(ValueError, match="loss: expected a LinearJSD with a teacher, found a LinearCrossEntropy"):
        patch_causal_lm(model(), LinearCrossEntropy(), model(1))
    with pytest.raises(ValueError, match="return_metrics: expected False, found True"):
        patch_causal_lm(model(), LinearCrossEntropy(return_metrics=True))


@pytest.fixture
def trl(monkeypatch):
    monkeypatch.setitem(os.environ, "TRL_EXPERIMENTAL_SILENCE", "1")
    return pytest.importorskip("trl")


def sft(trl, student, folder, records):
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({str(i): i for i in range(VOCAB)}, unk_token="0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="0", eos_token="1")

    class SftInOrder(trl.SFTTrainer):
        _get_train_sampler = InOrder._get_train_sampler

    datasets = pytest.importorskip("datasets")
    return trainer(
        student,
        folder,
        SftInOrder,
        datasets.Dataset.from_list(records),
        trl.SFTConfig,
        dict(processing_class=tokenizer),
        dataset_kwargs={"skip_prepare_dataset": True},
        remove_unused_columns=False,  # the attention mask stays
        bf16=False,
    )


def test_trls_sft_trainer(trl, tmp_path):
    """Its own loss is the cross-entropy of the patched model; a teacher would have no part in it."""

    def losses(student):
        run = sft(trl, student, tmp_path, rows())
        run.train()
        assert all(p.isfinite().all() for p in student.parameters())
        return logged(run)

    plain, fused = losses(model()), losses(patched("CE"))
    assert fused == pytest.approx(plain, rel=1e-4) and fused[0] == 0 and fused[1] > 0.1
    with pytest.raises(
        ValueError, match="expected a call that computes the loss given to .*fused_lm_head=True, as SFT"
    ):
        sft(trl, patched("JSD"), tmp_path, rows()).train()
    run = sft(trl, model(), tmp_path, rows())
    patch_causal_lm(run.model, LinearJSD(), model(1))  # after the trainer has given the model its forward
    with pytest.raises(
        ValueError, match="expected a call that computes the loss given to .*fused_lm_head=True, as SFT"
    ):
        run.train()
    run = sft(trl, model(), tmp_path, rows())
    patch_causal_lm(run.model)
    run.train()
    assert logged(run) == pytest.approx(plain, rel=1e-4)


def test_a_head_of_zeros_is_a_model_like_others():
    """Its logits are all 0, and so is what they are compared with."""
    student, tokens = model(), torch.arange(2, 8)[None]
    torch.nn.init.zeros_(student.lm_head.weight)
    loss = patch_causal_lm(student)(input_ids=tokens, labels=tokens).loss
    torch.testing.assert_close(loss.item(), torch.tensor(float(VOCAB)).log().item())
