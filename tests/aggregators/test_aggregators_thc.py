"""THC: integers that sum while compressed, whatever the ranks, and nothing lost."""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
import torch
from vector_world import VectorWorld, gaussians

from compressa.aggregators import State, World
from compressa.aggregators.base import AllReduce, StepContext
from compressa.aggregators.lookup_table import CODES, best_table
from compressa.aggregators.thc import THC, THCAggregator
from compressa.codecs.payload import HEADER_BYTES
from compressa.collectives.accumulator import Accumulator, Author, Span
from compressa.errors import ConfigError, PayloadError
from compressa.parameters import Layout, ParameterInfo, Segment
from compressa.testing.inputs import vectors

CHUNK = 256
ELEMS = 4 * CHUNK + 100
VECTOR = ParameterInfo(0, "w", (ELEMS,))
LAYOUT = Layout(0, (Segment(VECTOR, 0, ELEMS),))
gradients = partial(gaussians, elems=ELEMS)


class Rank(NamedTuple):
    """A rank in its first step, before the sum of codes."""

    aggregator: THCAggregator
    sums: Accumulator

    @property
    def spans(self) -> tuple[Span, ...]:
        """The shards, by owner."""
        return self.sums.cut(self.sums.span, len(self.aggregator._shards))


def ranks_after_round_1(size: int, hyper: THC) -> tuple[list[Rank], list[torch.Tensor]]:
    """Run all ranks to the codes of their first step, by hand."""
    ranks = [THCAggregator(hyper, LAYOUT, World(r, size, 0, "auto", State())) for r in range(size)]
    given = gradients(size)
    steps = [a.run([g], StepContext(0)) for a, g in zip(ranks, given, strict=True)]
    for step in steps:
        assert isinstance(next(step), AllReduce)
    largest = torch.stack([aggregator._norms for aggregator in ranks]).amax(dim=0)
    found = []
    for aggregator, step in zip(ranks, steps, strict=True):
        aggregator._norms.copy_(largest)
        request = step.send(None)
        assert isinstance(request, AllReduce)
        found.append(Rank(aggregator, request.values))
    return found, given


@pytest.mark.parametrize("size", [1, 2, 4, 9])
def test_sums_of_integers_are_exact_and_decode_to_the_sum_of_the_decodes(size: int) -> None:
    ranks, given = ranks_after_round_1(size, THC(chunk=CHUNK))
    dtype = np.uint8 if size <= 8 else np.uint16
    total, decoded = 0, torch.zeros(ELEMS)
    for rank in ranks:
        for shard, parts in enumerate(rank.aggregator._shards):
            numbers = np.zeros(parts[-1].high if parts else 0, np.uint16)
            for part in parts:
                part.look_up(rank.sums.give(rank.spans[shard]), numbers, add=False)
                out = torch.zeros(part.scope.segment.elems)
                part.decode(numbers, out, 1, 1.0)
                start = part.scope.start
                decoded[start : start + out.numel()] += out / size
            total += int(numbers.astype(np.int64).sum())
    sealed = []
    for owner, rank in enumerate(ranks):
        span = rank.spans[owner]
        sent = [other.sums.give(span) for other in ranks]
        rank.sums.add(span, sent[owner + 1 :], sent[:owner])
        sealed.append(rank.sums.share(span, Author(owner)))
    assert sum(int(x[HEADER_BYTES:].numpy().view(dtype).sum(dtype=int)) for x in sealed) == total
    for number, (rank, gradient) in enumerate(zip(ranks, given, strict=True)):
        for owner, span in enumerate(rank.spans):
            if owner != number:
                rank.sums.check(span, sealed[owner], owner)
                rank.sums.take([(span, sealed[owner])])
        torch.testing.assert_close(gradient, decoded, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("what", ["gaussian", "spiky", "constant", "one-hot"])
def test_the_error_of_one_step_is_a_few_percent_whatever_the_gradient(what: str, size: int) -> None:
    x = vectors(ELEMS)[what]
    world = VectorWorld(size, ELEMS, THC(chunk=CHUNK))
    mean = world.means([x] * size)[0]
    assert float((mean - x).square().sum()) <= 0.05 * float(x.square().sum())
    for rank in range(size):
        assert float(world.residual(rank).square().sum()) <= 0.05 * float(x.square().sum())


def test_ranks_round_with_bits_of_their_own() -> None:
    errors = []
    for size in (1, 8):
        world = VectorWorld(size, ELEMS, THC(chunk=CHUNK, clip=4.0, feedback=False))
        x = gradients(1)[0]
        total = 0.0
        for _ in range(15):
            mean = world.means([x] * size)[0]
            total += float((mean - x).square().sum())
        errors.append(total)
    assert errors[1] == pytest.approx(errors[0] / 8, rel=0.1)


def test_without_clipping_the_mean_over_steps_is_unbiased() -> None:
    world = VectorWorld(2, ELEMS, THC(chunk=CHUNK, clip=6.0, feedback=False))
    given, count = gradients(2), 200
    means = [world.means(given)[0].double() for _ in range(count)]
    exact = torch.stack(given).double().mean(dim=0)
    errors = torch.stack(means) - exact
    spread = float(errors.square().sum(dim=1).mean())
    off = float(errors.mean(dim=0).square().sum())
    assert off <= spread / count * (1 + 6 * (2 / ELEMS) ** 0.5)
    assert not world.states[0].vectors


def test_residuals_stay_bounded_when_ranks_differ() -> None:
    world = VectorWorld(2, ELEMS, THC(chunk=CHUNK))
    given = [gradients(1)[0], 1e-3 * gradients(1, 1)[0]]
    sizes = []
    for _ in range(60):
        world.means(given)
        sizes.append(max(float(world.residual(rank).norm()) for rank in range(2)))
    assert max(sizes[30:]) <= 1.3 * max(sizes[:30])
    assert max(sizes) <= 0.5 * float(given[0].norm())


@pytest.mark.parametrize("size", [2, 4, 9])
def test_codes_have_four_bits_and_sums_eight_while_they_fit(size: int) -> None:
    chunks, hyper = 36, THC(chunk=CHUNK)
    elems = chunks * CHUNK
    world = VectorWorld(size, elems, hyper, unit_bytes=1 << 20)
    world.means(gaussians(size, elems=elems))
    sent = sum(map(world.payload_bytes, range(size)))
    norms, codes = 2 * 4 * chunks, elems // 2
    sums = elems * (1 if size * hyper.levels <= 255 else 2)
    assert sent - 2 * size * (size - 1) * HEADER_BYTES == (size - 1) * (norms + codes + sums)
    if size <= 8:
        assert 2 * hyper.payload_bytes((elems,)) == norms + codes + sums


def test_very_small_gradients_wait_in_the_residual() -> None:
    world = VectorWorld(2, ELEMS, THC(chunk=CHUNK))
    given = [1e-35 * g for g in gradients(2)]
    assert not world.means(given)[0].any()
    assert torch.equal(world.residual(), given[0])


def test_hostile_sums_and_headers_are_refused() -> None:
    ranks, _ = ranks_after_round_1(2, THC(chunk=CHUNK))
    owner, other = (rank.sums for rank in ranks)
    span = ranks[0].spans[0]
    codes = other.give(span)
    owner.check(span, codes, 1)
    for index, value in ((0, 1), (3, 9), (12, 1), (16, 1), (20, 7)):
        wrong = codes.clone()
        wrong[index] = value
        with pytest.raises(PayloadError):
            owner.check(span, wrong, 1)
    owner.add(span, [codes])
    sums = owner.share(span, Author(0)).clone()
    other.check(span, sums, 0)
    sums[-1] = 61
    with pytest.raises(PayloadError, match="above 60"):
        other.check(span, sums, 0)


@pytest.mark.parametrize(("levels", "clip"), [(15, 2.5), (30, 2.5), (31, 2.0), (51, 3.0)])
def test_the_table_is_symmetric_and_no_neighbour_of_it_is_better(levels: int, clip: float) -> None:
    table = best_table(levels, clip)
    assert len(table) == CODES
    assert (table[0], table[-1]) == (0, levels)
    assert all(a < b for a, b in itertools.pairwise(table))
    assert all(a + b == levels for a, b in zip(table, reversed(table), strict=True))
    best = rounding_error(table, clip)
    for i in range(1, CODES // 2):
        for shift in (-1, 1):
            moved = list(table)
            moved[i], moved[-1 - i] = moved[i] + shift, moved[-1 - i] - shift
            if all(a < b for a, b in itertools.pairwise(moved)):
                assert rounding_error(tuple(moved), clip) >= best - 1e-7


def rounding_error(table: tuple[int, ...], clip: float) -> float:
    """E (z - a)(b - z) for a normal z between a and b, by adding up many small steps."""
    points = [(2 * k / table[-1] - 1) * clip for k in table]
    total = 0.0
    for a, b in itertools.pairwise(points):
        z = np.linspace(a, b, 2001)
        middle = (z[1:] + z[:-1]) / 2
        density = np.exp(-(middle**2) / 2) / math.sqrt(2 * math.pi)
        total += float(((middle - a) * (b - middle) * density).sum() * (b - a) / 2000)
    return total


def test_more_ranks_than_add_up_are_refused() -> None:
    assert THC().sums_dtype(8) is torch.uint8
    assert THC().sums_dtype(9) is torch.uint16
    with pytest.raises(ConfigError, match="levels = 15 or fewer"):
        THC(levels=16).sums_dtype(4100)
