"""The same training by TRL's GKDTrainer, with its own loss, on the same rows in the same order.

scripts/studies/quality.py trl --config job.yaml
"""

import os
import tempfile
import time
from pathlib import Path

from shared.command_line import fail


def add_arguments(parser):
    parser.add_argument("--config", type=Path, required=True, help="of a distill run, data.packing concat, in order")


def make_trainer(job, folder):
    """A GKDTrainer that reads ready ids in order, and keeps each step's loss and time in `records`."""
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    import torch
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl.experimental.gkd import GKDConfig, GKDTrainer

    from . import peer_job

    class InOrder(GKDTrainer):
        def _get_train_sampler(self, *_):
            return torch.utils.data.SequentialSampler(self.train_dataset)

        def compute_loss(self, *args, **kwargs):
            loss = super().compute_loss(*args, **kwargs)
            self.losses.append(loss.detach())
            return loss

        def training_step(self, *args, **kwargs):
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            self.times.append(time.monotonic())
            return super().training_step(*args, **kwargs)

    def collate(examples):
        ids = torch.tensor([example["input_ids"] for example in examples])
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}

    student, teacher = peer_job.load_models(job)
    optimizer = peer_job.make_optimizer(job, student)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: peer_job.rate_factor(job, step))
    size, steps = job["train"]["global_batch_size"], job["train"]["steps"]
    rows = peer_job.stream(job)[: steps * size]
    settings = GKDConfig(
        output_dir=folder,
        max_steps=steps,
        per_device_train_batch_size=size,
        gradient_accumulation_steps=1,
        max_grad_norm=job["optimizer"]["max_grad_norm"],
        beta=job["loss"]["beta"],
        temperature=job["loss"].get("temperature", 1.0),
        lmbda=0.0,
        bf16=job["train"]["dtype"] == "bfloat16",
        use_cpu=job["train"]["device"] == "cpu",
        gradient_checkpointing=False,
        disable_dropout=True,
        logging_strategy="no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        seed=job["train"].get("seed", 0),
    )
    trainer = InOrder(
        model=student,
        teacher_model=teacher,
        args=settings,
        data_collator=collate,
        train_dataset=Dataset.from_dict({"input_ids": rows.tolist()}),
        processing_class=AutoTokenizer.from_pretrained(job["student"]["path"], local_files_only=True),
        optimizers=(optimizer, schedule),
    )
    trainer.losses, trainer.times = [], []
    return trainer


def train(job):
    """Runs the job. Returns (one record a step, the trained student, {})."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(job, folder)
        trainer.train()
        trainer.times.append(time.monotonic())
        student = trainer.accelerator.unwrap_model(trainer.model)
    seconds = [end - start for start, end in zip(trainer.times, trainer.times[1:])]
    records = [
        {"step": step + 1, "loss": float(loss), "seconds": spent}
        for step, (loss, spent) in enumerate(zip(trainer.losses, seconds, strict=True))
    ]
    return records, student, {}


def main(args):
    from . import peer_job

    try:
        job = peer_job.read_job(args.config)
    except (ValueError, KeyError, OSError) as error:
        fail(error)
    records, student, totals = train(job)
    peer_job.save(job, student, records, totals)
    print(f"{len(records)} steps, last loss {records[-1]['loss']:.6f}")
