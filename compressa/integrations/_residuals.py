"""What ranks have not sent yet, in the folders of a framework's checkpoints."""

from __future__ import annotations

import warnings
from pathlib import Path

from compressa.errors import StateError
from compressa.hooks import Handle


def save(handle: Handle, folder: str | Path) -> None:
    """Write residuals into a folder that all ranks share. Collective.

    Args:
        handle: Whose residuals.
        folder: Of the checkpoint, or beside its file.

    Raises:
        StateError: It is not on a file system, or could not be written; on every rank.
    """
    if "://" in str(folder):
        raise StateError(
            f"residuals go to a file system that all ranks share, and {folder} is none; have the "
            "framework save to such a folder, or save without residuals and call handle.save"
        )
    handle.save(folder)


def load(handle: Handle, folder: str | Path) -> None:
    """Read residuals from a folder; a checkpoint without them leaves them zero. Collective.

    Args:
        handle: Whose residuals.
        folder: As in `save`.

    Raises:
        StateError: They are another model's, or can not be read, or some ranks do not see the
            folder; on every rank.
    """
    session = handle.engine.session
    seen = session.call_on_all("load of residuals", lambda: str(Path(folder).is_dir()))
    blind = [rank for rank, said in enumerate(seen) if said == str(False)]
    if not blind:
        handle.load(folder)
        return
    if len(blind) < len(seen):
        raise StateError(
            f"rank {blind[0]} sees no residuals in {folder}, and others do: all ranks must load "
            "from a folder that they share"
        )
    warnings.warn(
        f"there are no residuals in {folder}, as in a checkpoint of a run without compressa: they "
        "begin at zero. If it was moved, move that folder with it",
        RuntimeWarning,
        stacklevel=2,
    )
