#!/usr/bin/env python3
"""TRL's GKDTrainer (generalised knowledge distillation) with its loss computed by distill-losses.

`FusedGKDTrainer` is GKDTrainer with one method replaced: the student's forward, patched, returns the loss, and neither
model's logits exist. Sampling from the student or the teacher, data, optimizer and logging are TRL's.

Without models it distils a tiny random teacher into a tiny random student for a few steps on a CPU:

  losses/python/examples/trl_gkd.py --steps 3
  losses/python/examples/trl_gkd.py --student models/1b --teacher models/8b --steps 100
"""

import argparse
import os
import tempfile

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import torch
import transformers
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from trl.experimental.gkd import GKDConfig, GKDTrainer

from distill_losses import LinearJSD
from distill_losses.transformers import patch_causal_lm

TEMPLATE = "{% for message in messages %}<{{ message.role }}> {{ message.content }} <eos> {% endfor %}"
WORDS = ["<unk>", "<pad>", "<eos>", "<user>", "<assistant>"]
WORDS += ["what", "is", "the", "colour", "of", "sky", "grass", "snow", "blue", "green", "white"]
CONVERSATIONS = [
    [
        {"role": "user", "content": f"what is the colour of {thing}"},
        {"role": "assistant", "content": f"the colour of {thing} is {colour}"},
    ]
    for thing, colour in (("sky", "blue"), ("grass", "green"), ("snow", "white"))
]


class FusedGKDTrainer(GKDTrainer):
    """GKDTrainer whose loss, the generalised JSD with args.beta, needs no logits."""

    def __init__(self, *args, memory_cap_mb: int = 1024, **kwargs):
        super().__init__(*args, **kwargs)
        student, teacher = (self.accelerator.unwrap_model(m) for m in (self.model, self.teacher_model))
        patch_causal_lm(student, LinearJSD(beta=self.beta, memory_cap_mb=memory_cap_mb), teacher)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            labels=inputs["labels"],
            num_items_in_batch=num_items_in_batch,
            use_cache=False,
        )
        return (outputs.loss, outputs) if return_outputs else outputs.loss


def tiny_tokenizer():
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="<unk>", pad_token="<pad>", eos_token="<eos>", padding_side="left"
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def tiny_model(hidden_size, seed):
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        pad_token_id=WORDS.index("<pad>"),
        eos_token_id=WORDS.index("<eos>"),
        bos_token_id=None,
    )
    return transformers.LlamaForCausalLM(config)


def trainer(kind, student, teacher, tokenizer, steps, folder, **options):
    """A trainer of `kind` (GKDTrainer or FusedGKDTrainer) on the conversations of this file."""
    settings = dict(
        output_dir=folder,
        max_steps=steps,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        learning_rate=1e-3,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        max_length=64,
        max_new_tokens=8,
        bf16=False,
        use_cpu=not torch.cuda.is_available(),
        seed=0,
    )
    return kind(
        model=student,
        teacher_model=teacher,
        args=GKDConfig(**{**settings, **options}),
        train_dataset=Dataset.from_dict({"messages": CONVERSATIONS * 8}),
        processing_class=tokenizer,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--student", help="Hugging Face folder; none: a tiny random model")
    parser.add_argument("--teacher", help="Hugging Face folder; none: a tiny random model")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--lmbda", type=float, default=0.5, help="share of batches that the student samples")
    args = parser.parse_args()
    if (args.student is None) != (args.teacher is None):
        parser.error("--student and --teacher: expected both or neither")
    if args.student is None:
        student, teacher, tokenizer = tiny_model(32, 1), tiny_model(64, 2), tiny_tokenizer()
    else:
        load = transformers.AutoModelForCausalLM.from_pretrained
        student, teacher = load(args.student), load(args.teacher)
        tokenizer = transformers.AutoTokenizer.from_pretrained(args.student)
    with tempfile.TemporaryDirectory() as folder:
        trainer(FusedGKDTrainer, student, teacher, tokenizer, args.steps, folder, lmbda=args.lmbda).train()


if __name__ == "__main__":
    main()
