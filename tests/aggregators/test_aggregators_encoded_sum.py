"""Sums with a codec at every hop: the same bits everywhere, errors as the hops, no bias."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from test_collectives_algorithms import same_bits, sum_with

from compressa.aggregators.base import State, StepContext, World
from compressa.aggregators.encoded_sum import EncodedSum, SpanPayloads
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
from compressa.codecs.base import Codec
from compressa.collectives.accumulator import Author, Span
from compressa.collectives.algorithms import ALGORITHMS, Algorithm, segmented
from compressa.collectives.hierarchical import Topology, hierarchical
from compressa.errors import PayloadError
from compressa.parameters import Layout, ParameterInfo, Segment
from compressa.testing.codec_checks import DRAW
from compressa.testing.inputs import generator
from compressa.transports.loopback import Loopback

ELEMS = 1111
WHOLE = Span(0, ELEMS)
OTHERS = [
    *(Int8(rounding="stochastic"), Natural(), Fp16(), Fp8(), TernGrad()),
    *(DeMo(), OneBit(), OneBitSGD(), RandomK(), TopK()),
]


def holder(
    codec: Codec, values: torch.Tensor, rank: int, step: int = 0, *, kind: type = EncodedSum
) -> EncodedSum:
    """What one rank has of the sum of a parameter's gradients, which are overwritten."""
    elems = values.numel()
    layout = Layout(0, (Segment(ParameterInfo(3, "w", (elems,)), 0, elems),))
    world = World(rank, 16, 5, "per_hop", State())
    payloads = SpanPayloads(codec, layout, world, codec.block_elems)
    made: EncodedSum = kind(payloads, [values], StepContext(step), None)
    return made


def gradients(size: int) -> list[torch.Tensor]:
    return [torch.randn(ELEMS, generator=generator(rank)) for rank in range(size)]


def summed(algorithm: Algorithm, codec: Codec, values: list[torch.Tensor], step: int = 0) -> None:
    holders = [holder(codec, own, rank, step) for rank, own in enumerate(values)]
    sum_with(Loopback(len(values)), algorithm.all_reduce, holders, ELEMS)


@pytest.mark.parametrize(
    ("name", "codec"),
    [
        *((name, codec) for name in ALGORITHMS for codec in (Int8(), Int4(mapping="maxmin"))),
        *((name, codec) for name in ("ring", "recursive_doubling") for codec in OTHERS),
    ],
)
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
    x = torch.randn(ELEMS, generator=generator(0))
    codec = Int8(rounding="stochastic")

    def message(make: Callable[[EncodedSum], torch.Tensor], rank: int = 0, step: int = 0) -> bytes:
        payload = make(holder(codec, x.clone(), rank, step))
        return payload[24:].numpy().tobytes()  # behind the header

    messages = [
        message(lambda values: values.give(WHOLE)),
        message(lambda values: values.give(WHOLE), rank=1),
        message(lambda values: values.give(WHOLE), step=1),
        message(lambda values: values.share(WHOLE, Author(0))),
        message(lambda values: values.share(WHOLE, Author(1))),
        message(lambda values: values.share(WHOLE, Author(0, 1))),
    ]
    assert len(set(messages)) == len(messages)
    assert message(lambda values: values.share(WHOLE, Author(0)), rank=1) == messages[3]


class Noted(EncodedSum):
    """Notes, for each element, in whose names its messages were made."""

    authors: list[list[Author | None]]

    def give(self, span: Span) -> torch.Tensor:
        self._note(span, None)
        return super().give(span)

    def share(self, span: Span, author: Author) -> torch.Tensor:
        self._note(span, author)
        return super().share(span, author)

    def _note(self, span: Span, author: Author | None) -> None:
        for element in range(*span):
            self.authors[element].append(author)


def noted(rank: int) -> Noted:
    made = holder(Int8(), torch.zeros(ELEMS), rank, kind=Noted)
    assert isinstance(made, Noted)
    made.authors = [[] for _ in range(ELEMS)]
    return made


TWO_LEVELS = {
    f"{name} across": hierarchical(Topology(((0, 1, 2), (3, 4, 5), (6, 7, 8))), across)
    for name, across in ALGORITHMS.items()
}


@pytest.mark.parametrize("name", [*ALGORITHMS, *TWO_LEVELS])
def test_no_two_messages_of_an_element_have_the_same_random_bits(name: str) -> None:
    holders = [noted(rank) for rank in range(9)]
    sum_with(Loopback(9), (ALGORITHMS | TWO_LEVELS)[name].all_reduce, holders, ELEMS)
    for own in holders:
        assert all(len(set(authors)) == len(authors) for authors in own.authors)


def test_where_it_is_cut_does_not_matter_but_for_the_order_of_sums() -> None:
    whole, cut = gradients(2), gradients(2)
    for values, segments in ((whole, 1), (cut, 3)):
        holders = [holder(Int8(), own, rank) for rank, own in enumerate(values)]
        all_reduce = segmented(ALGORITHMS["recursive_doubling"], segments)
        sum_with(Loopback(2), all_reduce, holders, ELEMS)
    assert same_bits([*whole, *cut])


@pytest.mark.parametrize("name", ALGORITHMS)
def test_segments_of_no_elements_share_no_memory_with_others(name: str) -> None:
    """With 3 blocks, several of 8 segments begin at the same index."""
    values, block = gradients(3), 512
    due = torch.stack(values).sum(0)
    holders = [holder(Int8(block=block), own, rank) for rank, own in enumerate(values)]
    sum_with(Loopback(3), segmented(ALGORITHMS[name], 8), holders, ELEMS)
    assert same_bits(values)
    assert (values[0] - due).norm() < 0.05 * due.norm()


def test_segments_are_cut_between_blocks_of_their_own() -> None:
    codec, elems = Int8(block=32), (40, 7, 96)
    infos = [ParameterInfo(i, f"p{i}", (n,)) for i, n in enumerate(elems)]
    layout = Layout(0, tuple(Segment(info, 0, info.elems) for info in infos))
    world = World(0, 4, 5, "per_hop", State())
    values = [torch.randn(n, generator=generator(n)) for n in elems]
    held = [x.clone() for x in values]
    total = EncodedSum(SpanPayloads(codec, layout, world, 32), held, StepContext(0), None)
    whole, parts = total.give(total.span), total.cut(total.span, 3)
    assert total.span == Span(0, 64 + 32 + 96)
    assert all(span.start % 32 == 0 for span in parts)
    assert whole.numel() == 24 + sum(-(-codec.wire_bytes(n) // 8) * 8 for n in elems)
    due = [torch.zeros(n) for n in elems]
    for x, wanted in zip(values, due, strict=True):
        payload = torch.zeros(codec.wire_bytes(x.numel()), dtype=torch.uint8)
        codec.encode(x, payload, DRAW)
        codec.decode(payload, wanted, DRAW)
    for span in parts:  # whatever the cuts, it is as if each segment had been encoded alone
        total.take([(span, total.give(span))])
    assert all(torch.equal(x, wanted) for x, wanted in zip(held, due, strict=True))


def test_messages_of_unknown_length_are_refused() -> None:
    with pytest.raises(ValueError, match="not known beforehand"):
        holder(AdaComp(), torch.zeros(3), 0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda m: m[:-8], "says it has a body of"),
        (lambda m: torch.cat([torch.zeros(8, dtype=torch.uint8), m[8:]]), "begins with 0x0000"),
        (lambda m: m.index_fill(0, torch.tensor([8]), 9), "has step 9 where 4 is due"),
        (lambda m: m.index_fill(0, torch.tensor([12]), 7), "has unit 7 where 0 is due"),
        (lambda m: m.index_fill(0, torch.tensor([3]), 1), "has codec 1 where"),
    ],
)
def test_what_is_not_due_is_refused_with_unit_step_and_sender(
    change: Callable[[torch.Tensor], torch.Tensor], said: str
) -> None:
    own = holder(Int8(), torch.randn(ELEMS, generator=generator(1)), 0, step=4)
    message = own.give(WHOLE)
    own.check(WHOLE, message, 2)
    with pytest.raises(PayloadError, match=r"unit 0 \(w\) in step 4, from rank 2: ") as caught:
        own.check(WHOLE, change(message), 2)
    assert said in str(caught.value)


def test_a_message_of_another_span_is_refused() -> None:
    own = holder(Int8(block=8), torch.zeros(ELEMS), 0)
    first, second = Span(0, 512), Span(512, ELEMS)
    with pytest.raises(PayloadError, match=r"from rank 3: .* has elems 512 where 599 is due"):
        own.check(second, own.give(first), 3)
