"""DenseValues: the largest over the ranks, also where one is not finite."""

from __future__ import annotations

import pytest
import torch
from test_collectives_direct import run_all

from compressa.collectives import DenseValues, Program, round_robin
from compressa.collectives.rank_group import RankGroup
from compressa.collectives.scratch import Scratch
from compressa.testing.inputs import generator
from compressa.testing.memory import same_bits
from compressa.transports.loopback import Loopback


def largest_of(values: list[torch.Tensor]) -> None:
    size = len(values)

    def program(rank: int) -> Program[None]:
        largest, group = DenseValues(values[rank], maximum=True), RankGroup.everyone(rank, size)
        return round_robin.all_reduce(largest, largest.span, group, Scratch(torch.device("cpu")))

    assert run_all(Loopback(size), program) == [None] * size


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("elems", [0, 1, 100])
def test_every_rank_ends_with_the_maximum(size: int, elems: int) -> None:
    values = [torch.randn(elems, generator=generator(rank)) for rank in range(size)]
    due = torch.stack(values).amax(dim=0)
    largest_of(values)
    assert all(torch.equal(value, due) for value in values)


@pytest.mark.parametrize("where", range(3))
def test_a_nan_on_any_rank_is_a_nan_on_all(where: int) -> None:
    values = [torch.full((40,), float(rank)) for rank in range(3)]
    values[where][7] = torch.nan
    values[where][8] = torch.inf
    largest_of(values)
    assert all(same_bits(value, values[0]) for value in values)
    assert values[0][7].isnan()
    assert values[0][8].isinf()
    assert values[0][9] == 2.0


def test_a_backend_may_sum_but_not_take_the_maximum() -> None:
    values = torch.zeros(8)
    assert DenseValues(values).dense is values
    assert DenseValues(values, maximum=True).dense is None
