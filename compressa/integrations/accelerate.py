"""Accelerate: register a model that `accelerator.prepare` returned."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from accelerate import Accelerator
from torch import nn

from compressa.config import Source
from compressa.hooks import Handle, register_comm_hook
from compressa.hooks.register import ddp_of
from compressa.integrations import _residuals as residuals


def register(accelerator: Accelerator, model: nn.Module, config: Source) -> Handle:
    """Compress the gradients of a prepared model, and keep residuals in its checkpoints.

    `accelerator.save_state` writes them into its folder, `load_state` reads them, on all ranks;
    call both on every process. The accelerator's scaler is taken into account. Collective.

    Args:
        accelerator: That has prepared the model for several processes, by DDP.
        model: What `prepare` returned, compiled or not.
        config: Path of a TOML file, a mapping, or a `Config`.

    Returns:
        A handle for statistics.

    Raises:
        StateError: The model is not wrapped by DDP.
        CompressaError: As `compressa.register_comm_hook`.

    Example:
        >>> model, optimizer = accelerator.prepare(model, optimizer)   # doctest: +SKIP
        >>> handle = register(accelerator, model, "compressa.toml")    # doctest: +SKIP
    """
    ddp_of(
        model,
        "compressa.integrations.accelerate.register",
        "give it what accelerator.prepare returned, in two processes or more (accelerate launch or "
        "torchrun), without FSDP, DeepSpeed or Megatron",
    )
    handle = register_comm_hook(model, config, scaler=accelerator.scaler)
    folder_of = partial(_folder, model)
    accelerator.register_save_state_pre_hook(
        lambda models, _, folder: residuals.save(handle, folder_of(models, folder))
    )
    accelerator.register_load_state_pre_hook(
        lambda models, folder: residuals.load(handle, folder_of(accelerator._models, folder))
    )
    return handle


def _folder(model: nn.Module, models: list[nn.Module], folder: str) -> Path:
    """Number folders as Accelerate does files: that of the first model has no number.

    It keeps models as they were before they were wrapped, with the same parameters.
    """
    own = next(model.parameters())
    number = next(i for i, held in enumerate(models) if next(held.parameters()) is own)
    return Path(folder) / (f"compressa_{number}" if number else "compressa")
