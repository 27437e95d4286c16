"""Ok-Topk: regions at owners, thresholds that are used again, and no more than 6 k words."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from vector_world import VectorWorld, gaussians

from compressa.aggregators import State, World
from compressa.aggregators.oktopk import OkTopK
from compressa.aggregators.oktopk_state import KNOTS
from compressa.codecs.payload import HEADER_BYTES
from compressa.engine.units.lockstep import Lockstep
from compressa.errors import ConfigError, PayloadError
from compressa.parameters import Layout, ParameterInfo, Segment
from compressa.testing import MassLedger

F32 = npt.NDArray[np.float32]

ELEMS = 400
VECTOR = ParameterInfo(0, "w", (ELEMS,))
OFTEN = OkTopK(density=0.05, threshold_steps=3, region_steps=2)
gradients = partial(gaussians, elems=ELEMS)
sizes, densities = st.integers(1, 9), st.sampled_from((0.004, 0.05, 0.3, 0.7, 1.0))
steps = st.integers(1, 4)


def largest(values: F32, there: npt.NDArray[np.bool_], count: int) -> npt.NDArray[np.bool_]:
    """The largest magnitudes of the elements that are there, the lowest indices among equals."""
    order = np.argsort(np.where(there, -np.abs(values), np.inf), kind="stable")
    chosen = np.zeros_like(there)
    chosen[order[: min(count, int(there.sum()))]] = True
    return chosen


def on_line(knots: list[int], numerator: int, denominator: int) -> int:
    """The place of a fraction on a line through knots 0, 1, 2 and so on, rounded down."""
    before, rest = divmod(numerator, denominator)
    after = knots[min(before + 1, len(knots) - 1)]
    return knots[before] + (after - knots[before]) * rest // denominator


class Reference:
    """The algorithm on dense vectors, all ranks at once."""

    def __init__(self, size: int, elems: int, hyper: OkTopK) -> None:
        self.size, self.elems, self.hyper = size, elems, hyper
        self.k = hyper.kept(elems)
        self.most = min(self.k, max(1, 2 * self.k // size))
        self.residuals = [np.zeros(elems, np.float32) for _ in range(size)]
        self.local = [np.float32(0)] * size
        self.threshold, self.knots = np.float32(0), None
        self.number = 0

    def regions(self) -> list[slice]:
        size, knots = self.size, self.knots
        if knots is None:
            edges = [self.elems * r // size for r in range(size + 1)]
        else:
            line = [0, *knots, self.elems]
            edges = [on_line(line, r * KNOTS, size) for r in range(size)] + [self.elems]
        return list(itertools.starmap(slice, itertools.pairwise(edges)))

    def select(self, rank: int, p: F32, soon: bool) -> npt.NDArray[np.bool_]:
        limit = np.float32(0) if soon else self.local[rank]
        chosen = largest(p, np.abs(p) >= limit, self.k)
        if chosen.any() and (soon or chosen.sum() == self.k):
            self.local[rank] = np.abs(p[chosen]).min()
        return chosen

    def step(self, gradients: list[F32]) -> F32:
        p = [g + e for g, e in zip(gradients, self.residuals, strict=True)]
        hyper, new, unknown = self.hyper, self.knots is None, self.threshold == 0
        soon = new or self.number % hyper.threshold_steps == 0
        regional = new or unknown or self.number % hyper.region_steps == 0
        self.number += 1
        regions = self.regions()
        selected = [self.select(rank, own, soon) for rank, own in enumerate(p)]
        sent = [np.zeros(self.elems, np.bool_) for _ in p]
        sums = np.zeros(self.elems, np.float32)
        for own, chosen, mask in zip(p, selected, sent, strict=True):
            for region in regions:
                mask[region] = largest(own[region], chosen[region], self.most)
            sums += np.where(mask, own / np.float32(self.size), np.float32(0))
        counts = self.count(sums, regions, estimated=soon or unknown)
        if sum(counts) > self.k:
            counts = [count * self.k // sum(counts) for count in counts]
        out = np.zeros_like(sums)
        for region, count in zip(regions, counts, strict=True):
            there = largest(sums[region], sums[region] != 0, count)
            out[region] = np.where(there, sums[region], np.float32(0))
        if regional:
            self.knots = self.new_knots(selected, regions)
        for rank, mask in enumerate(sent):
            self.residuals[rank] = np.where(mask & (out != 0), np.float32(0), p[rank])
        return out

    def count(self, sums: F32, regions: list[slice], estimated: bool) -> list[int]:
        if not estimated:
            return [int((np.abs(sums[region]) >= self.threshold).sum()) for region in regions]
        told = [np.sort(np.abs(sums[region][sums[region] != 0]))[::-1] for region in regions]
        told = [own[: self.most] for own in told]
        every = np.sort(np.concatenate(told))[::-1]
        short = len(every) < self.k and max(map(len, told)) == self.most
        self.threshold = np.float32(0) if short or not len(every) else every[: self.k][-1]
        return [int((own >= self.threshold).sum()) for own in told]

    def new_knots(self, selected: list[npt.NDArray[np.bool_]], regions: list[slice]) -> list[int]:
        own = []
        for chosen in selected:
            indices = np.flatnonzero(chosen)
            if len(indices):
                own.append([int(indices[q * len(indices) // KNOTS]) for q in range(1, KNOTS)])
            else:  # as regions are
                edges = [region.start for region in regions] + [self.elems]
                own.append([on_line(edges, q * self.size, KNOTS) for q in range(1, KNOTS)])
        return [sum(column) // self.size for column in zip(*own, strict=True)]


@settings(max_examples=60)
@given(
    sizes,
    densities,
    st.sampled_from((7, 97, 400)),
    steps,
    steps,
    st.integers(0, 999),
    st.booleans(),
)
def test_it_is_the_paper_s_algorithm_bit_for_bit(
    size: int, density: float, elems: int, often: int, regional: int, seed: int, rounded: bool
) -> None:
    hyper = OkTopK(density=density, threshold_steps=often, region_steps=regional)
    world, reference = VectorWorld(size, elems, hyper), Reference(size, elems, hyper)
    for number in range(6):
        given = gaussians(size, seed + number, elems=elems)
        if number % 2:  # most are in one region
            given = [g * torch.linspace(0, 3, elems) ** 4 for g in given]
        if rounded:  # many ties
            given = [g.round() for g in given]
        due = reference.step([g.numpy() for g in given])
        for rank, mean in enumerate(world.means(given)):
            np.testing.assert_array_equal(mean.numpy(), due)
            np.testing.assert_array_equal(world.residual(rank).numpy(), reference.residuals[rank])


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
@settings(max_examples=12)
@given(densities, steps, steps, st.integers(0, 999), st.sampled_from((1.0, 1024.0)))
def test_no_mass_is_lost_and_replicas_are_identical(
    size: int, density: float, often: int, regional: int, seed: int, loss_scale: float
) -> None:
    hyper = OkTopK(density=density, threshold_steps=often, region_steps=regional)
    world = VectorWorld(size, 97, hyper)
    ledger = MassLedger(world)
    for number in range(6):
        given = [{"w": g * loss_scale} for g in gaussians(size, seed + number, elems=97)]
        ledger.step(world, given, loss_scale=loss_scale, skipped=number == 3)
        ledger.check(world, f"after step {number}")
    means = world.means(gaussians(size, seed + 6, elems=97))
    assert all(torch.equal(mean, means[0]) for mean in means)
    assert int(means[0].count_nonzero()) <= hyper.kept(97)


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_of_integers_on_a_power_of_two_of_ranks_nothing_at_all_is_missing(size: int) -> None:
    world = VectorWorld(size, ELEMS, OFTEN)
    given_total, out_total = torch.zeros(ELEMS), torch.zeros(ELEMS)
    for number in range(12):
        given = [(8 * g).round() for g in gradients(size, number)]
        given_total += torch.stack(given).sum(0)
        out_total += world.means(given)[0]
        kept = torch.stack([world.residual(rank) for rank in range(size)]).sum(0)
        assert torch.equal(size * out_total + kept, given_total)
    assert out_total.any()


def counted_words(ranks: Lockstep, given: list[torch.Tensor]) -> list[tuple[int, int]]:
    """Run a step; return the values and indices that each rank sends and receives."""
    size, number = len(given), 0
    words = np.zeros((size, 2), np.int64)

    def count(message: torch.Tensor) -> torch.Tensor:
        nonlocal number
        phase, pair = divmod(number, size * (size - 1))
        sender = pair // (size - 1)
        receiver = (sender + 1 + pair % (size - 1)) % size
        number += 1
        if phase != 1:  # owners tell of thresholds then
            elems = int(message[HEADER_BYTES : HEADER_BYTES + 4].view(torch.int32))
            words[sender, 0] += 2 * elems
            words[receiver, 1] += 2 * elems
        return message

    ranks.step([{"w": own.clone()} for own in given], count)
    assert number == 4 * size * (size - 1)
    return [tuple(pair) for pair in words.tolist()]


def skewed(size: int, seed: int) -> list[torch.Tensor]:
    """All that is large is in one place, which moves."""
    parts = gradients(size, seed)
    for own in parts:
        start = 40 * seed % (ELEMS - 80)
        own[start : start + 80] *= 50.0
    return parts


@pytest.mark.parametrize("make", [gradients, skewed])
@pytest.mark.parametrize("size", [2, 3, 4, 5, 8])
def test_no_rank_sends_or_receives_more_than_6k_words(
    size: int, make: Callable[[int, int], list[torch.Tensor]]
) -> None:
    hyper = OkTopK(density=0.3, threshold_steps=4, region_steps=8)
    ranks, k = Lockstep(size, [VECTOR], hyper), hyper.kept(ELEMS)
    words = [pair for n in range(12) for pair in counted_words(ranks, make(size, n))]
    sent, received = map(max, zip(*words, strict=True))
    assert k <= sent <= 6 * k * (size - 1) / size + 2 * size  # pieces are of whole elements
    assert k <= received <= 6 * k


def test_what_one_owner_has_is_cut_into_equal_pieces() -> None:
    """All that is large is in the first region, whose owner would send all of it to all."""
    size, hyper = 4, OkTopK(density=0.08, region_steps=1000)
    ranks, k = Lockstep(size, [VECTOR], hyper), hyper.kept(ELEMS)
    given = gradients(size)
    for own in given:
        own[:100] *= 50.0
    sent, received = zip(*counted_words(ranks, given), strict=True)
    # Of 32 elements 16 go in a message; the first owner gives away three quarters of 16.
    assert sent[0] == 2 * (12 + 3 * 4)
    assert all(each == 2 * (16 + 3 * 4) for each in sent[1:])
    assert received[0] == 2 * (3 * 16 + 12)
    assert k == 32


def test_thresholds_are_told_when_they_are_due_and_regions_settle() -> None:
    """Between estimations owners share a count; a skewed gradient is cut evenly from step 1 on."""
    size, hyper = 4, OkTopK(density=0.1, threshold_steps=4, region_steps=4)
    world = VectorWorld(size, ELEMS, hyper)
    before, sent = 0, []
    for number in range(8):
        given = [g * torch.linspace(0, 2, ELEMS) ** 6 for g in gradients(size, number)]
        world.means(given)
        sent.append(world.payload_bytes() - before)
        before += sent[-1]
    assert min(sent[4], sent[0]) > max(sent[2:4] + sent[6:8])
    knots = world.states[0].vectors["oktopk_agreed/w"][2:]
    assert knots[KNOTS // 2 - 1] > 0.7 * ELEMS  # the middle of what is selected


def test_a_resumed_run_repeats_the_bits_between_two_estimations() -> None:
    world = VectorWorld(4, ELEMS, OkTopK(density=0.05))
    for number in range(3):
        world.means(gradients(4, number))
    again = world.resized(4)
    for number in range(3, 6):
        first, second = (each.means(gradients(4, number)) for each in (world, again))
        assert torch.equal(first[0], second[0])
        assert all(torch.equal(world.residual(rank), again.residual(rank)) for rank in range(4))


def test_another_number_of_ranks_estimates_anew() -> None:
    world = VectorWorld(4, ELEMS, OFTEN)
    for number in range(4):
        world.means(gradients(4, number))
    larger = world.resized(6)
    means = larger.means(gradients(6, 7))
    assert all(torch.equal(mean, means[0]) for mean in means)
    assert larger.states[0].vectors["oktopk_agreed/w"][0] == 6.0


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_finite_is_nan_on_all_and_costs_nobody_anything(value: float) -> None:
    world = VectorWorld(3, ELEMS, OFTEN)
    world.means(gradients(3))
    before = [world.residual(rank).clone() for rank in range(3)]
    given = gradients(3, 1)
    given[1][7] = value
    assert all(mean.isnan().all() for mean in world.means(given))
    world.rollback()
    for rank, own in enumerate(given):
        due = torch.where(own.isfinite(), before[rank] + own, before[rank])
        assert torch.equal(world.residual(rank), due)


def put(start: int, *values: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return what writes 32-bit numbers over those of a message's body."""

    def write(message: torch.Tensor) -> torch.Tensor:
        first = HEADER_BYTES + start
        part = message[first : first + 4 * len(values)].view(torch.int32)
        part.copy_(torch.tensor(np.array(values, np.uint32).view(np.int32)))
        return message

    return write


def at_step_1(message: torch.Tensor) -> torch.Tensor:
    message[8] = 1
    return message


# In a step of two ranks, messages 0 and 1 are given in the split, 2 and 3 shared, and so on.
@pytest.mark.parametrize(
    ("number", "change", "reason"),
    [
        (0, put(0, 21), "21 elements came of 200 where at most 20 are due"),
        (0, put(0, 9), "the bitmap has not 9 bits set"),
        (0, lambda message: message[:-8], "body of"),
        (0, at_step_1, "step 1 where 0 is due"),
        (2, at_step_1, "step 1 where 0 is due"),
        (2, put(0, 21), "tells of 21 sums"),
        (2, put(0, 3), "its fields end|knots"),
        (2, put(8, 0x7F800000), "rising numbers above 0"),
        (2, put(8, 0x80000001), "rising numbers above 0"),
        (4, put(0, 1), "its fields end|1 elements came of .* at most 0|came where 0 are due"),
        (6, put(0, 1), "fields end|1 elements came where"),
        (6, at_step_1, "step 1 where 0 is due"),
    ],
)
def test_hostile_messages_are_refused_by_sender_before_they_are_used(
    number: int, change: Callable[[torch.Tensor], torch.Tensor], reason: str
) -> None:
    ranks, seen = Lockstep(2, [VECTOR], OkTopK(density=0.05)), 0

    def touch(message: torch.Tensor) -> torch.Tensor:
        nonlocal seen
        seen += 1
        return change(message.clone()) if seen == number + 1 else message

    with pytest.raises(PayloadError, match=f"from rank 0: .*({reason})"):
        ranks.step([{"w": g} for g in gradients(2)], touch)


def test_falling_knots_are_refused() -> None:
    def touch(message: torch.Tensor) -> torch.Tensor:
        if message.numel() > HEADER_BYTES + 4 * KNOTS:  # what is shared in the split
            message = message.clone()
            message[-8:-4] = 0
        return message

    ranks = Lockstep(2, [VECTOR], OkTopK(density=0.05))
    with pytest.raises(PayloadError, match="its knots are not rising numbers up to 400"):
        ranks.step([{"w": g} for g in gradients(2)], touch)


def test_gradients_on_a_gpu_are_refused_with_what_to_choose() -> None:
    layout = Layout(0, (Segment(VECTOR, 0, ELEMS),))
    world = World(0, 2, 0, "auto", State(torch.device("cuda")))
    with pytest.raises(ConfigError, match='on CPUs only; for gradients on cuda choose "gtopk"'):
        OFTEN.aggregator(layout, world)


def test_a_step_that_selects_nothing_ends() -> None:
    world: Any = VectorWorld(3, ELEMS, OFTEN)
    for _ in range(3):
        assert not any(mean.any() for mean in world.means([torch.zeros(ELEMS)] * 3))
