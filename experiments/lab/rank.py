"""One rank, which ``harness.rank`` runs: joins the process group once, then runs cells."""

from __future__ import annotations

import gc
from typing import Any, Literal

import torch.distributed as dist

from harness.wire import Wire
from lab.cells import TimeCell, TrainCell
from lab.timing import measure
from lab.training import train

PROGRESS_EVERY = 10


class Cells:
    """What the driver can ask for."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def train(self, cell: dict[str, Any]) -> dict[str, Any]:
        """Run a train cell; notes say at which step it is."""
        gc.collect()  # the model of the cell before must not be there in this one
        return train(TrainCell.model_validate(cell), self._progress).model_dump()

    def time(self, cell: dict[str, Any]) -> dict[str, Any]:
        """Run a time cell; notes say that an edge is reached, and the driver lets the ranks go."""
        gc.collect()
        return measure(TimeCell.model_validate(cell), self._edge).model_dump()

    def _progress(self, step: int) -> None:
        if dist.get_rank() == 0 and step % PROGRESS_EVERY == 0:
            self._wire.note(step=step)

    def _edge(self, which: Literal["start", "end"]) -> None:
        self._wire.note(edge=which)
        self._wire.wait()
