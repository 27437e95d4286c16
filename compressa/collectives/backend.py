"""Backend: the sum of plain values by the transport's own all-reduce, in one operation."""

from __future__ import annotations

from compressa.collectives.accumulator import Accumulator, Span
from compressa.collectives.base import BackendAllReduce, Program
from compressa.collectives.cost import Stage
from compressa.collectives.rank_group import RankGroup
from compressa.collectives.scratch import Scratch


def all_reduce(
    values: Accumulator, span: Span, group: RankGroup, scratch: Scratch
) -> Program[None]:
    """Sum over the group; see `compressa.collectives.algorithms`.

    Raises:
        ValueError: The values are not plain ones.
    """
    if values.dense is None:
        raise ValueError("a backend sums plain values only")
    yield BackendAllReduce(values.dense)


def stages(size_bytes: int, ranks: int) -> list[Stage]:
    """Return one stage: all that a ring of the backend's would send for a sum.

    Args:
        size_bytes: Of the values that are summed, as many on each rank.
        ranks: How many sum them, at least 1.
    """
    return [Stage(2 * (ranks - 1), 2 * (size_bytes * (ranks - 1) // ranks))]
