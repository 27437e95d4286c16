"""What the strategies for `lightning` and for `pytorch_lightning` have in common."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from compressa.config import Source
from compressa.hooks import Handle, register_comm_hook
from compressa.integrations import _residuals as residuals


class Compressed:
    """Beside Lightning's DDPStrategy: compresses its gradients, and keeps residuals.

    What ranks have not sent yet lies in a folder beside each checkpoint, `NAME.ckpt.compressa`:
    written, read and removed with it. Within the file, every rank would have to read what all
    others owe.

    Args:
        config: Path of a TOML file, a mapping, or a `Config`.
        options: As Lightning's DDPStrategy takes them, but that `gradient_as_bucket_view` is true
            if it is not given.

    Attributes:
        handle: Of the last `fit`; None before the first.
    """

    def __init__(self, config: Source, **options: Any) -> None:
        super().__init__(**{"gradient_as_bucket_view": True, **options})
        self._source = config
        self._wrapped: Any = None  # the handle knows it weakly, and saves after `fit` as well
        self.handle: Handle | None = None

    def configure_ddp(self) -> None:
        """Wrap the model, and compress its gradients; a run that is resumed gets its residuals."""
        super().configure_ddp()  # type: ignore[misc]
        if self.handle is not None:
            self.handle.close()
        strategy: Any = self
        self._wrapped = strategy.model
        scaler = getattr(strategy.precision_plugin, "scaler", None)
        self.handle = register_comm_hook(strategy.model, self._source, scaler=scaler)
        resumed = strategy.lightning_module.trainer.ckpt_path
        if resumed:
            residuals.load(self.handle, _beside(resumed))

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: str | Path, storage_options: Any = None
    ) -> None:
        """Save a checkpoint, and residuals beside it if it is not of the weights alone.

        Arguments are those of Lightning's `Strategy.save_checkpoint`.
        """
        super().save_checkpoint(checkpoint, filepath, storage_options)  # type: ignore[misc]
        if self.handle is not None and "optimizer_states" in checkpoint:
            residuals.save(self.handle, _beside(filepath))

    def remove_checkpoint(self, filepath: str | Path) -> None:
        """Remove a checkpoint, and the residuals beside it."""
        folder = _beside(filepath)
        super().remove_checkpoint(filepath)  # type: ignore[misc]
        strategy: Any = self
        if strategy.is_global_zero and folder.is_dir():
            shutil.rmtree(folder)


def _beside(filepath: str | Path) -> Path:
    """Return the folder of residuals; `last.ckpt` may be a link to another file."""
    return Path(os.path.realpath(filepath) + ".compressa")
