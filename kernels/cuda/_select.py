"""The largest elements above a floor, on a GPU: the kernels of ``select.cu`` in their order.

Nothing but the count is waited for: kernels decide on the GPU what the next ones do, which may be
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any, NamedTuple, get_args

import numpy as np

from .._arrays import F32, U32, Gradient, block_count
from ..select import Reference
from ._arguments import feedback, i64, values
from ._device import CTA, WARP, Argument, Table, device, launch
from ._later import state_of_caller

SOURCE = "select"
SAMPLE = 8192  # elements; as in select.cu
LEAST_SAMPLED = 8 * SAMPLE  # elements that a sample saves work with
STATE_WORDS = 8208  # of 8 bytes; as in _select.cuh
TILE, WORDS = 2048, 32  # elements that a warp takes at a time, and words of a bitmap for them
GROUP = TILE * CTA // WARP
_DEVIATIONS = 4.0  # of a rank in a sample; hardly ever more
_RESIDENT = 8  # blocks that a processor holds; each adds a histogram to the whole one
_REFINED = (2, 3)  # numbers of the histograms that two surveys leave over


class Selection:
    """The memory and the launches of one selection.

    Its first kernels, which differ, leave q in the residual, mark candidates and decide how many
    are chosen, and from which magnitude on.

    Args:
        x: At least one element.
        residual: Added to the vector; receives what is not chosen.
        loss_scale: The loss scale.

    Attributes:
        vector: Arguments of most kernels: the vector, its size.
        state: What the kernels know, in numbers of 8 bytes: how many were chosen, in how many
            surveys; the rest is theirs.
        marks: A bitmap of the candidates.
        tiles: How many a vector of this size has.
    """

    def __init__(self, x: Gradient, residual: F32 | None, loss_scale: float) -> None:
        self.vector = (*values(x), *feedback(residual, loss_scale), i64(x.size))
        self.tiles = block_count(x.size, TILE)
        self._left_in = state_of_caller()
        left = self._left_in is not None
        self.state = self._left_in if left else device().empty(STATE_WORDS, np.uint64)
        self.marks = device().empty(self.tiles * WORDS, np.uint64)
        self._groups = block_count(x.size, GROUP)

    def look(self, source: str, name: str, *arguments: Argument) -> None:
        """Start a kernel over the tiles, whose first arguments are the selection's own."""
        own = *self.vector, self.state, self.marks
        launch(source, name, min(self.tiles, resident(WARP)), WARP, *own, *arguments)

    def survey_again(self) -> None:
        """Survey once more if the first one has missed some, with the floor that is known now."""
        self.look(SOURCE, "survey_again")

    def write(self, indices: U32, chosen: F32, *, fixed: bool = False) -> None:
        """Find the smallest that is chosen, and write all.

        Args:
            indices: Receives the indices.
            chosen: Receives the values.
            fixed: Whether all of the room is filled if anything is not finite, or one element only.
        """
        for level in _REFINED:
            self.look(SOURCE, "refine", np.int32(level))
        sums = device().empty(self._groups, np.uint32)
        before, room = device().empty(self._groups, np.uint64), i64(indices.size)
        self.look(SOURCE, "count_chosen", sums, before, room)
        self.look(SOURCE, "write_chosen", before, indices, chosen, room, np.bool_(fixed))

    @property
    def count(self) -> int:
        """How many were chosen; it waits for the kernels, but see `count_left_in`."""
        return device().read(self.state) if self._left_in is None else 0


def resident(threads: int) -> int:
    """How many teams of so many threads the GPU holds at once."""
    return _RESIDENT * device().processors * CTA // threads


def select_largest(
    x: Gradient,
    threshold: float,
    indices: U32,
    chosen: F32,
    residual: F32 | None,
    loss_scale: float,
    *,
    relative_to: Reference = "one",
    fixed: bool = False,
) -> Selection:
    """Find the largest elements that reach a threshold, as many as there is room for.

    Args:
        x: At least one element.
        threshold: Over what it is relative to.
        indices: Receives the indices.
        chosen: Receives the values.
        residual: Added to the vector; receives what was not chosen.
        loss_scale: The loss scale.
        relative_to: See `compressa.kernels.select`.
        fixed: See `Selection.write`.
    """
    selection = Selection(x, residual, loss_scale)
    limit = np.int32(get_args(Reference).index(relative_to)), np.float64(threshold)
    ranks = (np.int32(rank) for rank in _ranks(indices.size, x.size))
    launch(SOURCE, "begin", 1, CTA, *selection.vector, selection.state, *ranks, *limit)

    squares = device().empty(selection.tiles, np.float64) if relative_to == "rms" else None
    first = "survey_once" if squares is None else "survey_with_squares"
    selection.look(SOURCE, first, squares, *limit, np.uint64(indices.size))
    selection.survey_again()
    selection.write(indices, chosen, fixed=fixed)
    return selection


def _ranks(most: int, n: int) -> tuple[int, int]:
    """Ranks in the sample between which the last one chosen lies, hardly ever beside them.

    The first is zero where a sample is not worth it, and the second where it tells no upper bound.
    """
    if n < LEAST_SAMPLED:
        return 0, 0
    expected = most * SAMPLE / n
    return low_rank(expected), int(max(expected - _DEVIATIONS * sqrt(expected), 0.0))


def low_rank(expected: float) -> int:
    """A rank in a sample that hardly ever lies above the last one chosen, expected at another."""
    return int(expected + _DEVIATIONS * sqrt(expected) + _DEVIATIONS)


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
    drawn = device().empty(sample, np.uint32), i64(sample), ranked, np.int32(len(ranks))
    blocks = min(block_count(sample, _EACH * CTA), resident(CTA))
    launch(source, "draw_sample", blocks, CTA, *selection.vector, *drawn)
    launch(source, "refine_ranks", blocks, CTA, *drawn)
    return Ranked(source, blocks, drawn)
