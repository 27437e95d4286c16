"""What one rank can be asked for, which ``harness.rank`` runs: cells, one after the other."""

from __future__ import annotations

import gc
from typing import Literal

import torch.distributed as dist

from harness.wire import Wire
from lab.records import TimeAnswer, TimeCell, TrainCell, Trained
from lab.timing import measure
from lab.training import train

PROGRESS_EVERY = 10


class Cells:
    """What the driver can ask for."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def train(self, cell: TrainCell) -> Trained:
        """Run a train cell; notes say at which step it is."""
        gc.collect()  # the model of the cell before must not be there in this one
        return train(cell, self._progress)

    def time(self, cell: TimeCell) -> TimeAnswer:
        """Run a time cell; notes say that an edge is reached, and the driver lets the ranks go."""
        gc.collect()
        return measure(cell, self._edge)

    def _progress(self, step: int) -> None:
        if dist.get_rank() == 0 and step % PROGRESS_EVERY == 0:
            self._wire.note(step=step)

    def _edge(self, which: Literal["start", "end"]) -> None:
        self._wire.note(edge=which)
        self._wire.wait()
