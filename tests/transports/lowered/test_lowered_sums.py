"""Lowered sums: what compiled code makes of a program is what the program itself makes."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from _lowered import CHUNK_BYTES, End, ends, side_by_side
from hypothesis import given, settings
from hypothesis import strategies as st
from test_collectives_algorithms import same_bits, sum_all

from compressa.collectives.algorithms import ALGORITHMS, segmented
from compressa.testing.inputs import generator
from compressa.transports.base import Key
from compressa.transports.loopback import Loopback
from compressa.transports.lowered import AVAILABLE
from compressa.transports.lowered.program import DTYPES

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="compiled sums are for 64-bit Linux")

CHUNK_ELEMS = CHUNK_BYTES // 4


def drawn(size: int, elems: int, dtype: torch.dtype, seed: int) -> list[torch.Tensor]:
    random = generator(seed)
    if dtype.is_floating_point:
        return [torch.randn(elems, generator=random).to(dtype) for _ in range(size)]
    return [torch.randint(0, 100, (elems,), generator=random).to(dtype) for _ in range(size)]


def sum_on(
    loops: list[End], name: str, values: list[torch.Tensor], key: Key, segments: int = 1
) -> None:
    """Sum by one algorithm, on a thread for each rank."""
    calls = [
        partial(end.sum, end.program(name, value, segments), value, key)
        for end, value in zip(loops, values, strict=True)
    ]
    side_by_side(calls)
    assert not any(end.failures for end in loops)


@pytest.mark.parametrize("name", ALGORITHMS)
@settings(max_examples=12, deadline=None)
@given(
    size=st.sampled_from([2, 3, 4, 5]),
    elems=st.sampled_from([0, 1, 15, 17, 1000, CHUNK_ELEMS, 5 * CHUNK_ELEMS + 3]),
    segments=st.sampled_from([1, 3]),
    seed=st.integers(0, 999),
    stripes=st.sampled_from([1, 2]),
)
def test_sums_have_the_bits_of_the_program(
    name: str, size: int, elems: int, segments: int, seed: int, stripes: int
) -> None:
    values = drawn(size, elems, torch.float32, seed)
    due = [value.clone() for value in values]
    sum_all(Loopback(size), segmented(ALGORITHMS[name], segments), due)
    with ends(size, stripes) as loops:
        sum_on(loops, name, values, Key(0, 0, 0), segments)
    assert same_bits([due[0], *values])


@pytest.mark.parametrize("chunk_bytes", [1001, 1004, 4099])
def test_chunks_of_any_length_cut_no_element(chunk_bytes: int) -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        values = drawn(2, 3001, dtype, 7)
        due = values[0] + values[1]
        with ends(2, chunk_bytes=chunk_bytes) as loops:
            sum_on(loops, "ring", values, Key(0, 0, 0))
        assert same_bits([due, *values])


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_of_every_dtype_have_the_bits_of_torch(dtype: torch.dtype) -> None:
    for name in ("ring", "round_robin"):
        values = drawn(3, 3001, dtype, 5)
        if dtype.is_floating_point:  # ties, what is too large, and what is no number
            for value, special in zip(values, (1.0, float("inf"), float("nan")), strict=True):
                value[:4] = special
            values[1][4:8] = torch.finfo(dtype).max
            values[2][4:8] = torch.finfo(dtype).max
            values[0][8:12] = torch.finfo(dtype).tiny / 2
        due = [value.clone() for value in values]
        sum_all(Loopback(3), ALGORITHMS[name].all_reduce, due)
        with ends(3) as loops:
            sum_on(loops, name, values, Key(0, 0, 0))
        for value in values:
            assert torch.equal(value.isnan(), due[0].isnan())
            assert torch.equal(value[~value.isnan()], due[0][~due[0].isnan()])
        assert same_bits(values)


def test_a_program_runs_again_and_again() -> None:
    with ends(3) as loops:
        values = drawn(3, 2000, torch.int64, 1)
        programs = [end.program("ring", v, 2) for end, v in zip(loops, values, strict=True)]
        for step in range(20):
            due = torch.stack(values).sum(0) % 1000
            side_by_side(
                [
                    partial(end.sum, program, value, Key(step, 3, 0))
                    for end, program, value in zip(loops, programs, values, strict=True)
                ]
            )
            for value in values:
                value %= 1000
            assert all(torch.equal(value, due) for value in values)
        sent = sum(end.loop.messages for end in loops)
        assert sent == 20 * 3 * 4 * 2  # steps, ranks, exchanges of a ring, segments


@settings(max_examples=20, deadline=None)
@given(order=st.permutations(range(6)), other=st.permutations(range(6)), seed=st.integers(0, 99))
def test_many_go_side_by_side_in_any_order(order: list[int], other: list[int], seed: int) -> None:
    orders = [order, other, sorted(order)]
    units = [drawn(3, 100 + 700 * unit, torch.int32, seed + unit) for unit in range(6)]
    due = [torch.stack(values).sum(0).to(torch.int32) for values in units]

    def run(end: End) -> None:
        for unit in orders[end.rank]:
            values = units[unit][end.rank]
            end.start(end.program("halving_doubling", values), values, Key(4, unit, 0), unit)
        end.until(6)

    with ends(3) as loops:
        side_by_side([partial(run, end) for end in loops])
        assert not any(end.failures for end in loops)
    for values, right in zip(units, due, strict=True):
        assert all(torch.equal(value, right) for value in values)


def test_who_is_ahead_by_a_step_waits_for_nobody() -> None:
    with ends(2) as (near, far):
        values = [torch.full((3000,), float(rank)) for rank in range(4)]
        # All of it fits into the sockets, so the first rank needs nobody to take it.
        for step, value in enumerate(values[:2]):
            near.start(near.program("recursive_doubling", value), value, Key(step, 0, 0))
        near.loop.wait(-1, 0.05)
        theirs = [torch.full((3000,), 10.0) for _ in range(2)]
        programs = [far.program("recursive_doubling", value) for value in theirs]
        far.start(programs[0], theirs[0], Key(0, 0, 0))
        far.until(1)
        far.start(programs[1], theirs[1], Key(1, 0, 0))
        far.until(2)
        near.until(2)
        assert not near.failures
        assert not far.failures
        for step in range(2):
            assert (theirs[step] == 10.0 + step).all()
            assert torch.equal(values[step], theirs[step])


def test_urgent_messages_overtake() -> None:
    with ends(2, kept_bytes=1 << 12) as (near, far):
        large, small = torch.ones(1 << 20), torch.ones(4)
        near.start(near.program("recursive_doubling", large), large, Key(0, 0, 0), priority=9)
        near.loop.wait(-1, 0.01)  # the socket is full
        near.start(near.program("recursive_doubling", small), small, Key(0, 1, 0), priority=1)
        a, b = torch.ones(1 << 20), torch.ones(4)
        far.start(far.program("recursive_doubling", a), a, Key(0, 0, 0), priority=9)
        far.start(far.program("recursive_doubling", b), b, Key(0, 1, 0), priority=1)
        side_by_side([partial(near.until, 2), partial(far.until, 2)])
        assert near.done == [Key(0, 1, 0), Key(0, 0, 0)]
        assert (large == 2).all()
        assert (b == 2).all()


# A call on the caller's own thread


def test_a_call_drives_by_itself() -> None:
    with ends(2) as loops:
        values = drawn(2, 500, torch.float32, 3)
        due = values[0] + values[1]
        programs = [e.program("recursive_doubling", v) for e, v in zip(loops, values, strict=True)]

        def call(end: End) -> None:
            key = Key(1, 0, 0)
            if not end.loop.run(programs[end.rank], values[end.rank], 1, key):  # a slow machine
                end.sum(programs[end.rank], values[end.rank], key)

        side_by_side([partial(call, end) for end in loops])
        assert same_bits([due, *values])
        assert not any(end.loop.busy for end in loops)


def test_a_call_that_takes_long_is_gone_on_with() -> None:
    with ends(2) as (near, far):
        values = drawn(2, 500, torch.float32, 3)
        due = values[0] + values[1]
        program, other = (e.program("ring", v) for e, v in zip((near, far), values, strict=True))
        assert not near.loop.run(program, values[0], 1, Key(1, 0, 0))
        assert program.under_way
        assert program.missing == [1]
        near.start(program, values[0], Key(1, 0, 0))
        assert near.loop.busy
        side_by_side([partial(near.until, 1), partial(far.sum, other, values[1], Key(1, 0, 0))])
        assert same_bits([due, *values])


def test_what_was_handed_over_goes_on_while_others_drive() -> None:
    with ends(2) as (near, far):
        values, others = drawn(2, 5000, torch.float32, 3), drawn(2, 500, torch.float32, 4)
        due, other_due = values[0] + values[1], others[0] + others[1]
        program, other = near.program("ring", values[0]), near.program("ring", others[0])
        assert not near.loop.run(program, values[0], 1, Key(1, 0, 0))

        def both() -> None:
            for key, mine in ((Key(1, 0, 0), values[1]), (Key(1, 1, 0), others[1])):
                far.sum(far.program("ring", mine), mine, key)

        def other_first() -> None:
            near.start(other, others[0], Key(1, 1, 0))
            near.until(1)
            near.start(program, values[0], Key(1, 0, 0))
            near.until(2)

        side_by_side([both, other_first])
        assert near.done == [Key(1, 1, 0), Key(1, 0, 0)]
        assert same_bits([due, *values])
        assert same_bits([other_due, *others])
        assert not near.loop.busy


def test_after_a_call_that_nobody_went_on_with_no_call_is_made() -> None:
    with ends(2) as (near, _):
        values, others = torch.ones(500), torch.ones(500)
        assert not near.loop.run(near.program("ring", values), values, 1, Key(1, 0, 0))
        other = near.program("ring", others)  # the first caller was interrupted
        assert not near.loop.run(other, others, 1, Key(2, 0, 0))
        near.start(other, others, Key(2, 0, 0))
        assert "was interrupted" in str(near.failures[0])


def test_a_call_leaves_what_is_under_way_to_its_driver() -> None:
    with ends(2) as (near, _):
        values = torch.ones(10)
        near.start(near.program("ring", values), values, Key(0, 0, 0))
        other = torch.ones(10)
        program = near.program("ring", other)
        assert not near.loop.run(program, other, 1, Key(0, 1, 0))
        assert not program.under_way
