"""Transformers: a callback for `Trainer`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from compressa.config import Source
from compressa.hooks import Handle, register_comm_hook
from compressa.hooks.register import ddp_of
from compressa.integrations import _residuals as residuals


class CompressaCallback(TrainerCallback):  # type: ignore[misc]
    """Compresses a Trainer's gradients, and keeps residuals in its checkpoints.

    In one process there is nothing to send, and it does nothing. A search over hyper-parameters
    keeps no residuals, nor do checkpoints of the model alone (`save_only_model`).

    Args:
        trainer: Whose. A callback is told the bare model only, and not the DDP one.
        config: Path of a TOML file, a mapping, or a `Config`.
        resume_from: The checkpoint that training goes on from, if it is not in the trainer's own
            `output_dir`, as a callback is not told.

    Attributes:
        handle: Once training has begun; else None.

    Example:
        >>> callback = CompressaCallback(trainer, "compressa.toml")  # doctest: +SKIP
        >>> trainer.add_callback(callback)                           # doctest: +SKIP
        >>> trainer.train(resume_from_checkpoint=True)               # doctest: +SKIP
    """

    def __init__(
        self, trainer: Trainer, config: Source, resume_from: str | Path | None = None
    ) -> None:
        self._trainer = trainer
        self._config = config
        self._resume_from = resume_from
        self._wrapped: nn.Module | None = None
        self.handle: Handle | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Register the model that Trainer has wrapped by now; read residuals of a resumed run.

        Raises:
            StateError: It is not wrapped by DDP.
            CompressaError: As `compressa.register_comm_hook`.
        """
        if args.world_size == 1:
            return
        wrapped = ddp_of(
            self._trainer.model_wrapped,
            "compressa's callback for Trainer",
            "train without FSDP, DeepSpeed and tensor parallelism",
        )
        if self.handle is None or wrapped is not self._wrapped:  # the second `train` wraps anew
            if self.handle is not None:
                self.handle.close()
            scaler = self._trainer.accelerator.scaler
            self.handle = register_comm_hook(wrapped, self._config, scaler=scaler)
            self._wrapped = wrapped
        if state.global_step:
            residuals.load(self.handle, _folder(args, state, self._resume_from))

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Write residuals into the checkpoint that Trainer has written."""
        if self.handle is None or args.save_only_model or state.is_hyper_param_search:
            return
        residuals.save(self.handle, _folder(args, state))


def _folder(
    args: TrainingArguments, state: TrainerState, checkpoint: str | Path | None = None
) -> Path:
    return Path(checkpoint or f"{args.output_dir}/checkpoint-{state.global_step}") / "compressa"
