"""All-reduce algorithms by name: what each one does, and what it costs.

`hierarchical` makes another of any of them, for ranks that share hosts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from compressa.collectives import (
    all_to_all,
    halving_doubling,
    master_worker,
    recursive_doubling,
    ring,
    round_robin,
    tree,
)
from compressa.collectives.accumulator import Accumulator, Span
from compressa.collectives.base import Program, SideBySide
from compressa.collectives.cost import Stage, Symmetry, always, in_pairs, never
from compressa.collectives.rank_group import RankGroup
from compressa.collectives.scratch import Scratch

_SEGMENT_BYTES = 256 << 10  # of a rank's part: what goes in one message
_MOST_SEGMENTS = 8

AllReduce = Callable[[Accumulator, Span, RankGroup, Scratch], Program[None]]
"""(values, span, group, scratch) -> program: sums a span over a group, in place.

    values: What this rank contributes; holds the sum when the program has ended, with the same bits
        on every rank of the group.
    span: Which of its elements; it begins at a multiple of `values.align_elems`.
    group: Who takes part, and which of them this rank is.
    scratch: Memory for what comes in, which no other program uses meanwhile.

On every rank it asks for the same number of exchanges: as many as it has stages. What `check` of
the values refuses raises PayloadError in the program.
"""


class Algorithm(NamedTuple):
    """One way to sum over ranks.

    Attributes:
        all_reduce: The program.
        stages: What each exchange costs, for a sum of so many bytes over so many ranks.
        symmetric: Whether all of so many ranks have the same to do.
        by_rank: Whether each value is summed in the order of ranks, wherever the values are cut.
    """

    all_reduce: AllReduce
    stages: Callable[[int, int], list[Stage]]
    symmetric: Symmetry = never
    by_rank: bool = False


ALGORITHMS = {
    "all_to_all": Algorithm(all_to_all.all_reduce, all_to_all.stages, always, by_rank=True),
    "halving_doubling": Algorithm(halving_doubling.all_reduce, halving_doubling.stages, in_pairs),
    "master_worker": Algorithm(master_worker.all_reduce, master_worker.stages),
    "recursive_doubling": Algorithm(
        recursive_doubling.all_reduce, recursive_doubling.stages, in_pairs
    ),
    "ring": Algorithm(ring.all_reduce, ring.stages, always),
    "round_robin": Algorithm(round_robin.all_reduce, round_robin.stages, always, by_rank=True),
    "tree": Algorithm(tree.all_reduce, tree.stages),
}


def segments_of(size_bytes: int, ranks: int) -> int:
    """Return into how many segments a sum is best cut, 1 to 8.

    Args:
        size_bytes: Of the whole sum.
        ranks: How many they are.
    """
    return max(1, min(size_bytes // ranks // _SEGMENT_BYTES, _MOST_SEGMENTS))


def segmented(algorithm: Algorithm, segments: int) -> AllReduce:
    """Cut what is summed into several: while one is on the wire, another is added up.

    Args:
        algorithm: Sums each of them.
        segments: How many; 1 for the algorithm as it is.
    """
    if segments == 1:
        return algorithm.all_reduce

    def all_reduce(
        values: Accumulator, span: Span, group: RankGroup, scratch: Scratch
    ) -> Program[None]:
        parts = values.cut(span, segments)
        programs = [
            algorithm.all_reduce(values, part, group, scratch.part(number))
            for number, part in enumerate(parts)
        ]
        yield SideBySide(programs, len(algorithm.stages(0, group.size)))

    return all_reduce
