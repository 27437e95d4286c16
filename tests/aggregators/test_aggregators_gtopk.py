"""gTop-k: the largest of the sum by a tree; what a merge leaves out stays with who merges."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import torch
from compressa.kernels import bitpack
from hypothesis import given, settings
from hypothesis import strategies as st
from vector_world import VectorWorld, gaussians

from compressa.aggregators import State, World
from compressa.aggregators.base import StepContext
from compressa.aggregators.gtopk import GTopK
from compressa.aggregators.sparse_sum import SparseUnit
from compressa.codecs import TopK
from compressa.codecs._sparse import ValueDtype
from compressa.codecs.payload import HEADER_BYTES
from compressa.collectives import tree
from compressa.collectives.accumulator import Author
from compressa.collectives.cost import Link
from compressa.engine.units.lockstep import Lockstep
from compressa.errors import PayloadError
from compressa.parameters import Layout, ParameterInfo, Segment
from compressa.testing import MassLedger
from compressa.transports.frames import FRAME_HEADER_BYTES
from compressa.transports.loopback import Loopback
from compressa.wrappers import MomentumCorrection

F32 = npt.NDArray[np.float32]

ELEMS = 400
VECTOR = ParameterInfo(0, "w", (ELEMS,))
gradients = partial(gaussians, elems=ELEMS)
sizes, densities = st.integers(1, 9), st.sampled_from((0.004, 0.05, 0.3, 0.7, 1.0))
dtypes = st.sampled_from(("float32", "float16", "bfloat16"))


class Held(NamedTuple):
    """A sparse vector as a dense one, and where it has elements."""

    values: F32
    there: npt.NDArray[np.bool_]


def largest(values: F32, there: npt.NDArray[np.bool_], k: int) -> npt.NDArray[np.bool_]:
    """The k largest magnitudes of the elements that are there, the lowest indices among equals."""
    order = np.argsort(np.where(there, -np.abs(values), np.inf), kind="stable")
    chosen = np.zeros_like(there)
    chosen[order[:k]] = True
    return chosen


def merge_up_a_tree(p: list[F32], k: int) -> tuple[F32, list[F32]]:
    """What all ranks get, and each rank's residual, in NumPy and without a sparse vector."""
    size, everywhere = len(p), np.ones_like(p[0], np.bool_)
    back = np.float32(1) / np.float32(1 / size)
    masks = [largest(own, everywhere, k) for own in p]
    kept = [np.where(mask, np.float32(0), own) for own, mask in zip(p, masks, strict=True)]
    held = [
        Held(np.where(mask, own / np.float32(size), np.float32(0)), mask)
        for own, mask in zip(p, masks, strict=True)
    ]
    distance = 1
    while distance < size:
        for rank in range(0, size - distance, 2 * distance):
            one, other = held[rank], held[rank + distance]
            total, there = one.values + other.values, one.there | other.there
            chosen = largest(total, there, k)
            kept[rank] += np.where(there & ~chosen, total, np.float32(0)) * back
            held[rank] = Held(np.where(chosen, total, np.float32(0)), chosen)
        distance *= 2
    return held[0].values, kept


@settings(max_examples=30)
@given(sizes, densities, st.sampled_from((1, 7, 97, 400)), st.integers(0, 999), st.booleans())
def test_it_is_the_merge_up_a_tree_bit_for_bit(
    size: int, density: float, elems: int, seed: int, rounded: bool
) -> None:
    world = VectorWorld(size, elems, GTopK(density=density))
    kept = [np.zeros(elems, np.float32) for _ in range(size)]
    for number in range(3):
        given = gaussians(size, seed + number, elems=elems)
        if rounded:  # many ties
            given = [g.round() for g in given]
        p = [g.numpy() + e for g, e in zip(given, kept, strict=True)]
        due, kept = merge_up_a_tree(p, TopK(density=density).kept(elems))
        for rank, mean in enumerate(world.means(given)):
            np.testing.assert_array_equal(mean.numpy(), due)
            np.testing.assert_array_equal(world.residual(rank).numpy(), kept[rank])


@settings(max_examples=30)
@given(sizes, densities, dtypes, st.integers(0, 999), st.sampled_from((1.0, 1024.0)))
def test_no_mass_is_lost_and_replicas_are_identical(
    size: int, density: float, value_dtype: ValueDtype, seed: int, loss_scale: float
) -> None:
    hyper = GTopK(density=density, value_dtype=value_dtype)
    world = VectorWorld(size, 97, hyper)
    ledger = MassLedger(world)
    for number in range(5):
        given = [{"w": g * loss_scale} for g in gaussians(size, seed + number, elems=97)]
        ledger.step(world, given, loss_scale=loss_scale, skipped=number == 2)
        ledger.check(world, f"after step {number}")
    means = world.means(gaussians(size, seed + 5, elems=97))
    assert all(torch.equal(mean, means[0]) for mean in means)
    assert int(means[0].count_nonzero()) <= hyper.messages.kept(97)


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_of_integers_on_a_power_of_two_of_ranks_nothing_at_all_is_missing(size: int) -> None:
    world = VectorWorld(size, ELEMS, GTopK(density=0.02))
    given_total, out_total = torch.zeros(ELEMS), torch.zeros(ELEMS)
    for number in range(12):
        given = [(8 * g).round() for g in gradients(size, number)]
        given_total += torch.stack(given).sum(0)
        out_total += world.means(given)[0]
        kept = torch.stack([world.residual(rank) for rank in range(size)]).sum(0)
        assert torch.equal(size * out_total + kept, given_total)
    assert out_total.any()


def test_what_one_branch_leaves_out_is_kept_though_another_brings_it_back() -> None:
    """The paper's rule loses the 3 of rank 1: its index is in the final mask."""
    world = VectorWorld(4, 3, GTopK(density=1 / 3))
    given = [[4.0, 0, 0], [0, 3.0, 0], [0, 5.0, 0], [0, 5.0, 0]]
    means = world.means([torch.tensor(own) for own in given])
    assert [mean.tolist() for mean in means] == 4 * [[0.0, 10 / 4, 0.0]]
    assert world.residual(0).tolist() == [4.0, 3.0, 0.0]
    assert not any(world.residual(rank).any() for rank in (1, 2, 3))


@pytest.mark.parametrize("size", range(2, 10))
def test_no_rank_sends_or_receives_more_than_a_message_a_hop(size: int) -> None:
    """2 lg P k values and indices at the busiest rank; together two messages for each but one."""
    hyper, link = GTopK(density=0.05), Link(message_s=1e-5, byte_s=1e-6)
    loopback = Loopback(size, message_s=link.message_s, bandwidth_bytes_per_s=1 / link.byte_s)
    world = VectorWorld(size, ELEMS, hyper, loopback=loopback)
    world.means(gradients(size))
    hops, message = tree.hops(size), HEADER_BYTES + -(-hyper.payload_bytes((ELEMS,)) // 8) * 8
    sent = [transport.traffic for transport in loopback.transports]
    for traffic in sent:
        assert traffic.messages <= hops
        assert traffic.sent_bytes == traffic.messages * (message + FRAME_HEADER_BYTES)
    assert sent[0].messages == hops  # and as often it hears: an edge is used once each way
    assert sum(traffic.messages for traffic in sent) == 2 * (size - 1)
    due_s = link.time_s(tree.stages(message + FRAME_HEADER_BYTES, size))
    assert loopback.clock.now_s == pytest.approx(due_s, rel=1e-9)


def test_sums_overflow_only_where_the_mean_does() -> None:
    world = VectorWorld(4, ELEMS, GTopK(density=0.05))
    given = [torch.full((ELEMS,), 3e38)] * 4
    for mean in world.means(given):
        assert mean[:20].tolist() == 20 * [float(np.float32(3e38))]


@pytest.mark.parametrize("size", [1, 3, 4])
def test_with_momentum_it_sums_velocities_and_masks_none(size: int) -> None:
    hyper, factor = GTopK(density=0.05), 0.5
    ours, plain = (
        VectorWorld(size, ELEMS, compressor)
        for compressor in (MomentumCorrection(compressor=hyper, factor=factor), hyper)
    )
    velocities = [torch.zeros(ELEMS) for _ in range(size)]
    for number in range(5):
        given = gradients(size, number)
        velocities = [factor * u + g for u, g in zip(velocities, given, strict=True)]
        means = ours.means([512 * g for g in given], loss_scale=512.0)
        due = plain.means([512 * u for u in velocities], loss_scale=512.0)
        assert all(torch.equal(*pair) for pair in zip(means, due, strict=True))
        if number == 2:
            ours.rollback()
            plain.rollback()
        for rank in range(size):
            assert torch.equal(ours.residual(rank), plain.residual(rank))


def with_indices(indices: list[int]) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return what writes indices over those of a message."""

    def write(message: torch.Tensor) -> torch.Tensor:
        values, start = np.array(indices, np.uint32), HEADER_BYTES + 4 * len(indices)
        packed = message[start : start + bitpack.packed_bytes(len(indices), 9)]
        bitpack.pack_bits(values, 9, packed.numpy())
        return message

    return write


def at_step_1(message: torch.Tensor) -> torch.Tensor:
    message[8] = 1
    return message


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (with_indices([*range(19), ELEMS]), "not strictly increasing"),
        (with_indices([*range(19), 511]), "not strictly increasing"),
        (with_indices([5] * 20), "not strictly increasing"),
        (with_indices([*range(20, 0, -1)]), "not strictly increasing"),
        (at_step_1, "step 1 where 0 is due"),
        (lambda message: message[:-8], "body of"),
        (lambda message: message[:3], "shorter than its header"),
    ],
)
def test_hostile_messages_are_refused_by_sender_before_they_are_used(
    change: Callable[[torch.Tensor], torch.Tensor], reason: str
) -> None:
    layout = Layout(0, (Segment(VECTOR, 0, ELEMS),))
    codec = GTopK(density=0.05, indices="bits").messages
    ours, theirs = (
        SparseUnit(codec, layout, World(rank, 2, 0, "auto", State())).begin([own], StepContext(0))
        for rank, own in enumerate(gradients(2))
    )
    for message in (theirs.give(theirs.span), theirs.share(theirs.span, Author(1))):
        ours.check(ours.span, message, 1)
        with pytest.raises(PayloadError, match=f"from rank 1: .*{reason}"):
            ours.check(ours.span, change(message.clone()), 1)


@pytest.mark.parametrize(("number", "sender"), [(0, 1), (1, 0)])
def test_messages_are_checked_up_and_down_the_tree(number: int, sender: int) -> None:
    """A message of another step decodes as well as any: nothing but a check refuses it."""
    ranks, seen = Lockstep(2, [VECTOR], GTopK(density=0.05)), 0

    def touch(message: torch.Tensor) -> torch.Tensor:
        nonlocal seen
        seen += 1
        return at_step_1(message.clone()) if seen == number + 1 else message

    with pytest.raises(PayloadError, match=f"from rank {sender}: .*step 1 where 0 is due"):
        ranks.step([{"w": g} for g in gradients(2)], touch)
