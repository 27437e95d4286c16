"""Training by the Trainer of transformers, on a rank."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
import torch.distributed as dist
from _frameworks import MAX_NORM, End, Run, checkpoint_of, end_of, made
from _rank_models import batch
from accelerate.state import AcceleratorState, GradientState
from torch import nn
from torch.nn import functional
from transformers import Trainer, TrainingArguments

from compressa.integrations.transformers import CompressaCallback

ROWS = 16


class Net(nn.Module):
    """A model that returns its loss, as Trainer wants it, and notes it."""

    def __init__(self) -> None:
        super().__init__()
        self.net, _ = made()
        self.losses: list[float] = []

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.net(x)
        loss = functional.cross_entropy(logits.float(), labels)
        self.losses.append(loss.item())
        return {"loss": loss, "logits": logits}


def rows(count: int) -> list[dict[str, torch.Tensor]]:
    """Return as many batches, row by row, which Trainer shares out among the ranks."""
    drawn = [batch(0, index, torch.float32) for index in range(count)]
    pairs = [(x, label) for xs, labels in drawn for x, label in zip(xs, labels, strict=True)]
    return [{"x": x, "labels": label} for x, label in pairs]


def trainer_of(run: Run, model: nn.Module, folder: str) -> Trainer:
    """Make a Trainer that does the steps of a run and nothing else."""
    arguments = TrainingArguments(
        output_dir=folder,
        use_cpu=True,
        max_steps=run.last,
        per_device_train_batch_size=ROWS,
        gradient_accumulation_steps=run.accumulate,
        max_grad_norm=MAX_NORM if run.clip else 0.0,
        bf16=run.bf16,
        learning_rate=0.05,
        lr_scheduler_type="constant",
        optim="sgd",
        optim_args="momentum=0.9",
        save_strategy="steps",
        save_steps=run.last if run.folder is not None and not run.first else 1000,
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=False,
        seed=7,
    )
    data: Any = rows(2 * 8 * run.accumulate)
    return Trainer(model, arguments, train_dataset=data)


def by_trainer(run: Run) -> End:
    """Trainer, with its own accumulation, clipping, precision and checkpoints."""
    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    model = Net()
    with tempfile.TemporaryDirectory() as nowhere:
        trainer = trainer_of(run, model, run.folder or nowhere)
        handle = None
        if run.config is not None:
            callback = CompressaCallback(trainer, run.config)
            trainer.add_callback(callback)
        trainer.train(resume_from_checkpoint=checkpoint_of(run, f"checkpoint-{run.first}"))
        if run.config is not None:
            handle = callback.handle
        dist.barrier()
    return end_of(model.net, model.losses, handle)
