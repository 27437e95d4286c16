"""Undo: what the state was when the last step began, so that a step that failed leaves no trace.

A step may end anywhere: one unit is done, another has encoded and its sum is half under way, a
third has not begun; and what the algorithms keep changes at different points of it. So the state is
copied when a step begins, all of it, and put back bit by bit. Residuals then hold what they held,
and the step can be repeated, with fewer ranks if need be.
"""

from __future__ import annotations

import torch

from compressa.aggregators import narrow
from compressa.aggregators.base import Merge, State


class Undo:
    """A copy of one rank's state.

    Args:
        state: The live state.

    Attributes:
        step: The step that began when the copy was made; None before the first.
    """

    def __init__(self, state: State) -> None:
        self.step: int | None = None
        self._state = state
        self._kept: dict[str, torch.Tensor] = {}

    def keep(self, step: int) -> None:
        """Copy the state: `step` begins now. Memory is allocated once.

        On a GPU it is done on the current stream.
        """
        live = self._state.vectors
        self._kept = {key: copy for key, copy in self._kept.items() if _alike(live.get(key), copy)}
        for key, vector in live.items():
            if key in self._kept:
                self._kept[key].copy_(vector)
            else:
                self._kept[key] = vector.clone()
        self.step = step

    def restore(self) -> None:
        """Put the state back as it was when `keep` was called, bit by bit."""
        for key, copy in self._kept.items():
            live = self._state.vectors.get(key)
            if live is not None and _alike(live, copy):
                live.copy_(copy)
            else:
                self._state.vectors[key] = copy.clone()


def _alike(vector: torch.Tensor | None, copy: torch.Tensor) -> bool:
    return vector is not None and (vector.shape, vector.dtype) == (copy.shape, copy.dtype)


def handed_over(before: State, after: State, gain: float) -> dict[str, torch.Tensor]:
    """Return what a new world's state begins with, from that of a rank that goes on in it.

    Args:
        before: What the rank had in the world before.
        after: What it has asked for in the new one; residuals that nobody there asks for are
            added, to be flushed.
        gain: P'/P, for P ranks before and P' now: what is owed keeps its share of the mean.

    Returns:
        A tensor for each vector of `after`. An estimate whose mean all ranks keep becomes that
        mean, so that it goes on being the mean of the estimates of those who are left. What is
        never forgotten is in `after` by the same memory, which others hold views of.
    """
    for key in before.kept:
        after.vectors[key], after.merges[key] = before.vectors[key], before.merges[key]
        after.kept.add(key)
    for key, vector in before.vectors.items():
        if key not in after.vectors and key.startswith("residual/") and bool(vector.any()):
            after.vectors[key] = torch.zeros_like(vector)
            after.merges[key] = before.merges[key]
    values = {}
    for key, like in after.vectors.items():
        if key not in before.vectors:
            continue
        vector = before.vectors[key]
        kind, _, name = key.partition("/")
        mean = before.vectors.get(f"{kind}_mean/{name}")
        if mean is not None:
            values[key] = mean
        elif before.merges[key] is Merge.FIRST:
            values[key] = vector
        elif kind == "residual":
            values[key] = narrow.converted(narrow.widened(vector) * gain, narrow.width_of(like))
        else:
            values[key] = vector * gain
    return values
