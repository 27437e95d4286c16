"""Exact ranks in a sample, found by a whole GPU; see ``_ranks.cuh``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .._arrays import block_count
from ._device import CTA, Table, device, launch
from ._select import STATE_WORDS, Selection, resident

RANKS = 15  # that a kernel takes; as in _ranks.cuh
_LAYOUT = np.dtype([("of", np.uint64, RANKS)])
_EACH = 4  # elements of the sample for a thread: some time to wait for is shared


class Ranked(NamedTuple):
    """A sample, drawn and counted but for the last level, which `finish` is for.

    Attributes:
        source: Name of the ``.cu`` file.
        blocks: How many blocks of threads the sample is worth.
        arguments: Of the kernel that counts the last level: ``const u32* sample, i64 size, State*
            ranked, int ranks``.
    """

    source: str
    blocks: int
    arguments: tuple[Any, ...]

    def finish(self, name: str, *arguments: Any) -> None:
        """Start the kernel that counts the last level, and begins what the ranks are for."""
        launch(self.source, name, self.blocks, CTA, *self.arguments, *arguments)


def draw_ranks(source: str, selection: Selection, sample: int, ranks: Sequence[int]) -> Ranked:
    """Draw a sample, and begin to find which of its magnitudes have some ranks.

    Args:
        source: Name of a ``.cu`` file that has ``_ranks.cuh``.
        selection: Says what is drawn from.
        sample: How many elements, at least one.
        ranks: From 1, the largest, to ``sample``.
    """
    ranked = device().empty(len(ranks) * STATE_WORDS, np.uint64)
    for first in range(0, len(ranks), RANKS):
        table = Table(_LAYOUT, {}, {"of": ranks[first : first + RANKS]})
        count = min(RANKS, len(ranks) - first)
        launch(source, "begin_ranks", count, CTA, ranked, np.int32(first), np.int32(count), table)
    drawn = device().empty(sample, np.uint32), np.int64(sample), ranked, np.int32(len(ranks))
    blocks = min(block_count(sample, _EACH * CTA), resident(CTA))
    launch(source, "draw_sample", blocks, CTA, *selection.vector, *drawn)
    launch(source, "refine_ranks", blocks, CTA, *drawn)
    return Ranked(source, blocks, drawn)
