"""The payload header: every field that differs is refused, and the message names it."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import pytest
import torch
from emulated_cuda import on_emulated_cuda
from emulated_torch import emulated_torch, on_cpu, on_gpu

from compressa.aggregators import State, World, build_aggregator
from compressa.aggregators.base import Round, Verb
from compressa.aggregators.scalecom import ScaleCom
from compressa.codecs import Natural, OneBitSGD, TopK
from compressa.codecs.payload import (
    HEADER_BYTES,
    Header,
    check_countable,
    check_header,
    read_header,
    write_header,
)
from compressa.compressor import Compressor
from compressa.engine.units.sums import Sums
from compressa.errors import ConfigError, PayloadError
from compressa.parameters import Layout, ParameterInfo, Segment
from compressa.transports.loopback import Loopback
from compressa.wrappers import ErrorFeedback

DUE = Header(codec=6, epoch=2, step=2**32 + 7, unit=9, elems=1000, body_bytes=40)


def payload(header: Header = DUE, body_bytes: int = 40) -> torch.Tensor:
    buffer = torch.zeros(HEADER_BYTES + body_bytes, dtype=torch.uint8)
    write_header(buffer, header)
    return buffer


def test_own_header_is_accepted_across_the_wrap_of_steps() -> None:
    assert check_header(payload(), DUE, sender=1, exact=True) == 40
    assert read_header(payload()) == replace(DUE, step=7)


@on_emulated_cuda
def test_a_header_reaches_a_gpu_without_a_copy_from_memory_that_is_gone_by_then() -> None:
    with emulated_torch():
        there = on_gpu(torch.zeros(HEADER_BYTES + 40, dtype=torch.uint8))
        with mock.patch.object(torch.Tensor, "copy_", side_effect=AssertionError):
            write_header(there, DUE)
        torch.cuda.synchronize()
        assert torch.equal(on_cpu(there), payload())


@pytest.mark.parametrize("field", ["codec", "epoch", "step", "unit", "elems"])
def test_each_field_that_differs_is_named(field: str) -> None:
    wrong = replace(DUE, **{field: getattr(DUE, field) + 1})
    with pytest.raises(PayloadError, match=rf"rank 3 has {field} \d+ where \d+ is due"):
        check_header(payload(wrong), DUE, sender=3, exact=True)


@pytest.mark.parametrize("length", [0, 1, HEADER_BYTES - 1])
def test_short_payloads_are_refused(length: int) -> None:
    with pytest.raises(PayloadError, match="shorter than its header"):
        check_header(payload()[:length], DUE, sender=0, exact=True)


@pytest.mark.parametrize(("says", "arrived"), [(39, 39), (41, 41), (40, 39), (40, 41), (0, 40)])
def test_lengths_that_differ_are_refused(says: int, arrived: int) -> None:
    with pytest.raises(PayloadError, match="exactly 40 are due"):
        check_header(payload(replace(DUE, body_bytes=says), arrived), DUE, sender=0, exact=True)


def test_bounded_payloads_may_be_shorter_but_not_longer() -> None:
    short = payload(replace(DUE, body_bytes=10), 10)
    assert check_header(short, DUE, sender=0, exact=False) == 10
    with pytest.raises(PayloadError, match="at most 40 are due"):
        check_header(payload(replace(DUE, body_bytes=41), 41), DUE, sender=0, exact=False)


@pytest.mark.parametrize("index", range(HEADER_BYTES))
def test_any_changed_byte_is_refused(index: int) -> None:
    for bit in range(8):
        mutant = payload()
        mutant[index] ^= 1 << bit
        with pytest.raises(PayloadError):
            check_header(mutant, DUE, sender=0, exact=True)


TOO_LARGE = ParameterInfo(0, "embedding", (1 << 16, 1 << 16))


@pytest.mark.parametrize(
    "compressor",
    [
        ErrorFeedback(codec=TopK(density=1e-6)),
        ErrorFeedback(codec=OneBitSGD(group=1 << 30)),
        ScaleCom(density=1e-6),
        Natural(),
    ],
    ids=lambda compressor: compressor.name,
)
def test_a_unit_that_a_header_cannot_count_is_refused_when_it_is_built(
    compressor: Compressor,
) -> None:
    layout = Layout(0, (Segment(TOO_LARGE, 0, TOO_LARGE.elems),))
    world = World(0, 1, 0, "all_gather" if compressor.name != "scalecom" else "auto", State())
    with pytest.raises(ConfigError, match=r"4294967296 elements .* 2\^32 - 1"):
        build_aggregator(compressor, layout, world)
    assert not world.state.vectors


def test_a_message_that_a_frame_cannot_count_is_refused() -> None:
    transport = Loopback(2).transports[0]
    rounds = [Round(Verb.ALL_REDUCE, torch.uint8, size) for size in (2**32 - 1, 2**32)]
    assert Sums(transport).transfers(0, rounds[:1])
    with pytest.raises(ConfigError, match=r"4294967296 bytes .* 2\^32 - 1"):
        Sums(transport).transfers(0, rounds)


def test_the_largest_counts_fit_a_header() -> None:
    most = Header(codec=6, epoch=0, step=0, unit=0, elems=2**32 - 1, body_bytes=2**32 - 1)
    check_countable("a unit", most.elems, most.body_bytes)
    assert read_header(payload(most)) == most
