"""Sums with a codec at every hop: the same bits everywhere, errors as the hops, no bias."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from test_collectives_algorithms import same_bits, sum_with

from compressa.codecs import (
    AdaComp,
    DeMo,
    Fp8,
    Fp16,
    Int4,
    Int8,
    Natural,
    OneBit,
    OneBitSGD,
    RandomK,
    TernGrad,
    TopK,
)
from compressa.codecs.base import Codec, Draw
from compressa.collectives.accumulator import Author, Span
from compressa.collectives.algorithms import ALGORITHMS, Algorithm, segmented
from compressa.collectives.encoded import EncodedValues
from compressa.collectives.hierarchical import Topology, hierarchical
from compressa.testing.inputs import generator
from compressa.transports.loopback import Loopback

ELEMS = 1111
CODECS = [Int8(), Int8(rounding="stochastic"), Int4(mapping="maxmin"), Natural(), Fp16(), Fp8()]
OTHERS = [DeMo(), OneBit(), OneBitSGD(), RandomK(), TernGrad(), TopK()]


def draw(rank: int, step: int = 0) -> Draw:
    return Draw(seed=5, step=step, parameter=3, start=0, rank=rank)


def gradients(size: int) -> list[torch.Tensor]:
    return [torch.randn(ELEMS, generator=generator(rank)) for rank in range(size)]


def summed(algorithm: Algorithm, codec: Codec, values: list[torch.Tensor], step: int = 0) -> None:
    holders = [EncodedValues(codec, v, draw(rank, step)) for rank, v in enumerate(values)]
    sum_with(Loopback(len(values)), algorithm.all_reduce, holders, ELEMS)


@pytest.mark.parametrize("codec", [*CODECS, *OTHERS], ids=lambda codec: codec.name)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_rank_ends_with_the_same_bits(name: str, codec: Codec) -> None:
    for size in (2, 3, 7, 8):
        values = gradients(size)
        summed(ALGORITHMS[name], codec, values)
        assert same_bits(values)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_rank_alone_keeps_its_values(name: str) -> None:
    (values,) = gradients(1)
    before = values.clone()
    summed(ALGORITHMS[name], Int8(), [values])
    assert same_bits([before, values])


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("size", [2, 3, 8, 13])
def test_it_errs_by_no_more_than_its_hops(name: str, size: int) -> None:
    values = gradients(size)
    due = torch.stack(values).double().sum(0)
    # In a hop no element is in two partial sums. Each errs by half a unit of its block's maximum,
    # and the maxima of all of them add up to no more than those of what was put in.
    blocks = torch.stack(values).abs().split(256, dim=1)
    most = torch.cat([b.amax(1).sum().expand(b.shape[1]) for b in blocks]).double()
    half_unit = 1 / 254
    reducing = sum(stage.reduced_bytes > 0 for stage in ALGORITHMS[name].stages(4, size))
    bound = ((1 + half_unit) ** (reducing + 1) - 1) * most
    summed(ALGORITHMS[name], Int8(), values)
    assert ((values[0] - due).abs() <= bound * (1 + 1e-5)).all()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_stochastic_errors_average_out_over_steps(name: str) -> None:
    size, steps, total = 6, 40, torch.zeros(ELEMS)
    due = torch.stack(gradients(size)).sum(0)
    errors = []
    for step in range(steps):
        values = gradients(size)
        summed(ALGORITHMS[name], Int4(rounding="stochastic"), values, step)
        total += values[0]
        errors.append((values[0] - due).norm())
    # 40 independent errors: their mean is shorter by a factor of the root of 40.
    assert (total / steps - due).norm() < 1.3 * torch.stack(errors).mean() / steps**0.5


def test_each_message_has_random_bits_of_its_own() -> None:
    span, x = Span(0, ELEMS), torch.randn(ELEMS, generator=generator(0))
    codec = Int8(rounding="stochastic")

    def message(make: Callable[[EncodedValues], torch.Tensor], rank: int = 0) -> bytes:
        return make(EncodedValues(codec, x.clone(), draw(rank))).numpy().tobytes()

    messages = [
        message(lambda values: values.give(span)),
        message(lambda values: values.give(span), rank=1),
        message(lambda values: values.share(span, Author(0))),
        message(lambda values: values.share(span, Author(1))),
        message(lambda values: values.share(span, Author(0, 1))),
    ]
    assert len(set(messages)) == len(messages)
    assert message(lambda v: v.share(span, Author(0)), rank=1) == messages[2]
    later = EncodedValues(codec, x.clone(), draw(0))
    later.begin(replace(draw(0), step=1))
    assert later.give(span).numpy().tobytes() not in messages


class Noted(EncodedValues):
    """Notes, for each element, in whose names its messages were made."""

    def __init__(self, rank: int) -> None:
        super().__init__(Int8(), torch.zeros(ELEMS), draw(rank))
        self.authors: list[list[Author | None]] = [[] for _ in range(ELEMS)]

    def give(self, span: Span) -> torch.Tensor:
        self._note(span, None)
        return super().give(span)

    def share(self, span: Span, author: Author) -> torch.Tensor:
        self._note(span, author)
        return super().share(span, author)

    def _note(self, span: Span, author: Author | None) -> None:
        for element in range(*span):
            self.authors[element].append(author)


TWO_LEVELS = {
    f"{name} across": hierarchical(Topology(((0, 1, 2), (3, 4, 5), (6, 7, 8))), across)
    for name, across in ALGORITHMS.items()
}


@pytest.mark.parametrize("name", [*ALGORITHMS, *TWO_LEVELS])
def test_no_two_messages_of_an_element_have_the_same_random_bits(name: str) -> None:
    holders = [Noted(rank) for rank in range(9)]
    sum_with(Loopback(9), (ALGORITHMS | TWO_LEVELS)[name].all_reduce, holders, ELEMS)
    for holder in holders:
        assert all(len(set(authors)) == len(authors) for authors in holder.authors)


def test_where_it_is_cut_does_not_matter_but_for_the_order_of_sums() -> None:
    whole, cut = gradients(2), gradients(2)
    for values, segments in ((whole, 1), (cut, 3)):
        holders = [EncodedValues(Int8(), v, draw(rank)) for rank, v in enumerate(values)]
        all_reduce = segmented(ALGORITHMS["recursive_doubling"], segments)
        sum_with(Loopback(2), all_reduce, holders, ELEMS)
    assert same_bits([*whole, *cut])


def test_messages_of_unknown_length_are_refused() -> None:
    with pytest.raises(ValueError, match="not known beforehand"):
        EncodedValues(AdaComp(), torch.zeros(3), draw(0))
