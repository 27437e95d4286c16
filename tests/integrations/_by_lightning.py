"""Training by Lightning's Trainer, on a rank."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from _frameworks import MAX_NORM, End, Run, checkpoint_of, end_of, made
from _rank_models import batch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy
from torch.nn import functional

from compressa.integrations.lightning import CompressaStrategy


class Module(LightningModule):
    """Notes its losses, and says itself which batch is next: not all loaders can be resumed."""

    def __init__(self, first: int = 0) -> None:
        super().__init__()
        self._next = first
        self.net, self._optimizer = made()
        self.losses: list[float] = []

    def training_step(self, _: torch.Tensor, __: int) -> torch.Tensor:
        x, labels = batch(dist.get_rank(), self._next, torch.float32)
        self._next += 1
        loss = functional.cross_entropy(self.net(x).float(), labels)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self._optimizer


def ticks() -> Any:
    """Return what a loader gives for each step."""
    return torch.utils.data.DataLoader([0.0] * 100, batch_size=None)


def trainer_of(run: Run, strategy: Any) -> Trainer:
    """Make a Trainer that does the steps of a run and nothing else."""
    precision: Any = "bf16-mixed" if run.bf16 else "32-true"
    return Trainer(
        accelerator="cpu",
        devices=2,
        strategy=strategy,
        precision=precision,
        max_steps=run.last,
        accumulate_grad_batches=run.accumulate,
        gradient_clip_val=MAX_NORM if run.clip else None,
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def by_lightning(run: Run) -> End:
    """Lightning, with its own accumulation, clipping, precision and checkpoints."""
    strategy = DDPStrategy() if run.config is None else CompressaStrategy(run.config)
    trainer, module = trainer_of(run, strategy), Module(run.first * run.accumulate)
    trainer.fit(module, ticks(), ckpt_path=checkpoint_of(run, "model.ckpt"))
    if run.folder is not None and not run.first:
        trainer.save_checkpoint(f"{run.folder}/model.ckpt")
    return end_of(module.net, module.losses, getattr(strategy, "handle", None))
