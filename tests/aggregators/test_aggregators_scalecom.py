"""ScaleCom: a leader in rotation chooses, values sum, residuals can be filtered."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from compressa.kernels import bitpack
from vector_world import VectorWorld, gaussians

from compressa.aggregators import Broadcast, State, World
from compressa.aggregators.base import StepContext
from compressa.aggregators.scalecom import ScaleCom, ScaleComAggregator
from compressa.codecs.payload import HEADER_BYTES
from compressa.errors import PayloadError
from compressa.parameters import Layout, ParameterInfo, Segment

ELEMS = 400
VECTOR = ParameterInfo(0, "w", (ELEMS,))
HYPER = ScaleCom(density=0.05)
KEPT = 20
gradients = partial(gaussians, elems=ELEMS)


def largest(p: torch.Tensor) -> torch.Tensor:
    """Whether each element is among the k largest."""
    mask = torch.zeros(ELEMS, dtype=torch.bool)
    mask[p.abs().topk(KEPT).indices] = True
    return mask


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("beta", [1.0, 0.25])
def test_each_rank_in_turn_chooses_for_all(size: int, beta: float) -> None:
    world = VectorWorld(size, ELEMS, ScaleCom(density=0.05, beta=beta))
    kept = [torch.zeros(ELEMS) for _ in range(size)]
    for step in range(2 * size):
        given = gradients(size, step)
        corrected = [g + e for g, e in zip(given, kept, strict=True)]
        chosen = largest(corrected[step % size])
        means = world.means(given)
        due = torch.where(chosen, torch.stack(corrected).mean(dim=0), 0.0)
        for rank, mean in enumerate(means):
            torch.testing.assert_close(mean, due, rtol=1e-5, atol=1e-6)
            sent = torch.where(chosen, corrected[rank], 0.0)
            kept[rank] = kept[rank] + beta * (given[rank] - sent)
            torch.testing.assert_close(world.residual(rank), kept[rank], rtol=1e-5, atol=2e-6)


def test_units_have_different_leaders() -> None:
    def leader(unit: int, step: int) -> int:
        layout = Layout(unit, (Segment(VECTOR, 0, ELEMS),))
        return ScaleComAggregator(HYPER, layout, World(0, 3, 0, "auto", State())).leader(
            StepContext(step)
        )

    assert [leader(0, step) for step in range(4)] == [0, 1, 2, 0]
    assert [leader(unit, 0) for unit in range(4)] == [0, 1, 2, 0]


@pytest.mark.parametrize("size", [2, 4, 7])
def test_indices_come_to_each_rank_once_and_are_passed_on(size: int) -> None:
    world = VectorWorld(size, ELEMS, HYPER)
    world.means(gradients(size))
    sent = [world.payload_bytes(rank) for rank in range(size)]
    message = HEADER_BYTES + bitpack.packed_bytes(KEPT, 9)
    assert sum(sent) == (size - 1) * message + 2 * (size - 1) * 4 * KEPT
    # 20 values are shared out in multiples of 16, so shards differ; their sum does not.
    assert sent[0] <= (size - 1).bit_length() * message + 2 * (size - 1) * 4 * KEPT
    assert HYPER.payload_bytes((ELEMS,)) == bitpack.packed_bytes(KEPT, 9) // 2 + 4 * KEPT


def payload_of(indices: list[int]) -> Callable[[torch.Tensor], None]:
    """Return what writes indices over those of a payload."""

    def write(payload: torch.Tensor) -> None:
        values = np.array(indices, np.uint32)
        bitpack.pack_bits(values, bitpack.index_width(ELEMS), payload[HEADER_BYTES:].numpy())

    return write


def cut(payload: torch.Tensor) -> None:
    """Say that there is no body."""
    payload[20:24] = 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (payload_of([*range(KEPT - 1), ELEMS]), "not strictly increasing"),
        (payload_of([*range(KEPT - 1), 511]), "not strictly increasing"),
        (payload_of([5] * KEPT), "not strictly increasing"),
        (payload_of([*range(KEPT, 0, -1)]), "not strictly increasing"),
        (cut, "body of 0 bytes"),
    ],
)
def test_hostile_indices_are_refused_before_they_are_used(
    change: Callable[[torch.Tensor], None], message: str
) -> None:
    layout = Layout(0, (Segment(VECTOR, 0, ELEMS),))
    leader, other = (
        HYPER.aggregator(layout, World(rank, 2, 0, "auto", State())) for rank in range(2)
    )
    given = gradients(2)
    requests = [
        aggregator.run([gradient], StepContext(0))
        for aggregator, gradient in zip((leader, other), given, strict=True)
    ]
    first, second = (next(request) for request in requests)
    assert isinstance(first, Broadcast)
    assert isinstance(second, Broadcast)
    change(second.payload.copy_(first.payload))
    with pytest.raises(PayloadError, match=message):
        requests[1].send(None)
