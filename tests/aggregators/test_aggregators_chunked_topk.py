"""Chunked top-k: the same chunks on every rank, chosen by all norms; values that sum."""

from __future__ import annotations

import pytest
import torch
from vector_world import VectorWorld

from compressa.aggregators import State, World
from compressa.aggregators.chunked_topk import ChunkedTopK
from compressa.parameters import Layout, ParameterInfo, Segment
from compressa.testing.inputs import generator
from compressa.testing.memory import same_bits

CHUNK = 64
ELEMS = 9 * CHUNK + 17
HYPER = ChunkedTopK(density=0.3, chunk=CHUNK)


def gradients(size: int, seed: int = 0) -> list[torch.Tensor]:
    """Chunks of different sizes, so that no two norms are close."""
    random = generator(seed)
    sizes = torch.rand(10, generator=random).repeat_interleave(CHUNK)[:ELEMS]
    return [torch.randn(ELEMS, generator=random) * sizes for _ in range(size)]


def squared_norms(p: torch.Tensor) -> torch.Tensor:
    return torch.stack([part.double().square().sum() for part in p.split(CHUNK)])


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_chunks_of_largest_summed_norm_arrive_and_the_others_are_kept(size: int) -> None:
    world = VectorWorld(size, ELEMS, HYPER)
    kept = [torch.zeros(ELEMS) for _ in range(size)]
    for step in range(4):
        given = gradients(size, step)
        corrected = [g + e for g, e in zip(given, kept, strict=True)]
        largest = torch.stack([squared_norms(p) for p in corrected]).sum(dim=0).topk(3).indices
        chosen = torch.isin(torch.arange(ELEMS) // CHUNK, largest)
        means = world.means(given)
        due = torch.where(chosen, torch.stack(corrected).mean(dim=0), 0.0)
        for rank, mean in enumerate(means):
            torch.testing.assert_close(mean, due, rtol=1e-6, atol=1e-7)
            kept[rank] = torch.where(chosen, 0.0, corrected[rank])
            assert torch.equal(world.residual(rank), kept[rank])


def test_ties_go_to_the_lowest_chunk() -> None:
    world = VectorWorld(2, ELEMS, HYPER)
    mean = world.means([torch.ones(ELEMS)] * 2)[0]
    assert mean.nonzero().ravel().tolist() == list(range(3 * CHUNK))


def test_bytes_are_those_of_norms_and_values() -> None:
    whole = ParameterInfo(0, "w", (64 * CHUNK,))
    hyper = ChunkedTopK(density=0.25, chunk=CHUNK)
    layout = Layout(0, (Segment(whole, 0, whole.elems),))
    rounds = hyper.aggregator(layout, World(0, 2, 0, "auto", State())).rounds
    assert [round_.capacity_bytes for round_ in rounds] == [4 * 64, 4 * 16 * CHUNK]
    assert hyper.payload_bytes(whole.shape) == 4 * 64 + 4 * 16 * CHUNK


def test_where_nothing_was_taken_a_skipped_step_changes_no_bit() -> None:
    world = VectorWorld(2, ELEMS, HYPER)
    before = world.residual().fill_(-0.0).clone()
    world.rollback()  # before any step
    assert same_bits(world.residual(), before)
    overflowing = torch.full((ELEMS,), torch.inf)
    world.means([overflowing] * 2)
    world.rollback()
    assert same_bits(world.residual(), before)


def test_large_finite_gradients_do_not_count_as_an_overflow() -> None:
    world = VectorWorld(3, ELEMS, HYPER)
    means = world.means([torch.full((ELEMS,), 3e38)] * 3)
    assert all(bool(mean.isfinite().all()) for mean in means)
