"""Breakdowns: every moment of a step counts once, for the first cause that holds."""

from __future__ import annotations

import itertools
import math
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compressa.tracing import STAGES, WAITS, Span
from compressa.tracing.breakdown import Breakdown, breakdowns, total

NAMES = [field.name for field in fields(Breakdown)]


def span(stage: str, began_s: float, ended_s: float, unit: int = 0, **more: object) -> Span:
    if stage in ("train", "wait", "core", "lock"):
        unit = -1
    made = Span(stage, "p", 0, began_s, ended_s - began_s, unit)
    return made._replace(**more)  # type: ignore[arg-type]


def broken_down(*spans: Span, seconds: float = 20) -> dict[str, float]:
    """What is not zero of a step from 0 on."""
    (found,) = breakdowns(spans, [(0.0, seconds)])
    assert found.seconds == pytest.approx(seconds)
    return {n: pytest.approx(s) for n in NAMES if (s := getattr(found, n)) > 1e-9}


WAIT = span("wait", 10, 20)
TRAIN = span("train", 0, 10, cpu_s=10)
BEFORE = {"compute_s": 10}


def test_training_is_computing_calls_waits_for_a_core_and_what_else_blocks() -> None:
    train = span("train", 0, 20, cpu_s=8, core_s=5, calls_s=2)
    due = {"compute_s": 6, "calls_s": 2, "core_s": 5, "elsewhere_s": 7}
    assert broken_down(train) == due


def test_training_waits_for_the_lock_while_others_are_known_to_have_it() -> None:
    train = span("train", 0, 20, cpu_s=8, core_s=5)
    taken = [span("lock", 0, 9), span("lock", 8, 11)]
    # The thread itself may have had it for 8 of these 11 seconds.
    assert broken_down(train, *taken) == {
        "compute_s": 8, "core_s": 5, "lock_s": 3, "elsewhere_s": 4,
    }  # fmt: skip
    # It was blocked for no longer than 7.
    assert broken_down(train, span("lock", 0, 20)) == {"compute_s": 8, "core_s": 5, "lock_s": 7}


def test_clocks_that_run_ahead_of_the_wall_take_no_more_than_there_is() -> None:
    train = span("train", 0, 20, cpu_s=21, core_s=3, calls_s=50)
    assert broken_down(train) == {"calls_s": 20}


def test_where_no_clock_is_known_training_computes() -> None:
    assert broken_down(span("train", 0, 20)) == {"compute_s": 20}
    assert broken_down(span("wire", 1, 2), WAIT) == {"compute_s": 10, "unknown_s": 10}


def test_what_nothing_is_known_of_is_not_accounted_for() -> None:
    assert broken_down(TRAIN, WAIT) == {**BEFORE, "unknown_s": 10}
    assert broken_down(TRAIN) == {**BEFORE, "unknown_s": 10}


def test_the_first_cause_that_holds_counts() -> None:
    codec, core = span("compress", 12, 13), span("core", 12, 14)
    wire, peers = span("wire", 12, 18, sent_s=15), span("arrive", 16, 17)
    queued = span("queued", 12, 19, unit=1)
    assert broken_down(TRAIN, WAIT, codec, core, wire, peers, queued) == {
        **BEFORE,
        "codec_s": 1,  # 12 to 13
        "core_s": 1,  # to 14
        "wire_s": 2,  # ours leaves, to 15, and theirs arrives from 16 to 17
        "peers_s": 1,  # in between
        "queued_s": 3,  # it is here at 17 and taken up at 19; then training must go on
        "unknown_s": 2,  # 10 to 12
    }  # fmt: skip


def test_what_is_not_told_apart_is_said_to_be_so() -> None:
    wires = [span("wire", 10, 14), span("wire", 14, 20, unit=1, sent_s=15)]
    assert broken_down(TRAIN, WAIT, *wires) == {**BEFORE, "carried_s": 9, "wire_s": 1}


def test_what_waits_while_the_lock_is_taken_waits_for_it() -> None:
    queued, taken = span("queued", 10, 20), span("lock", 12, 15)
    assert broken_down(TRAIN, WAIT, queued, taken) == {**BEFORE, "lock_s": 3, "queued_s": 7}


def test_a_codec_without_a_core_waits_for_one_and_one_that_sleeps_is_a_codec() -> None:
    work = span("decompress", 10, 20, cpu_s=2, core_s=3)
    assert broken_down(TRAIN, WAIT, work) == {**BEFORE, "core_s": 3, "codec_s": 7}
    taken = span("lock", 0, 20)
    assert broken_down(TRAIN, WAIT, work, taken) == {
        **BEFORE, "core_s": 3, "lock_s": 5, "codec_s": 2,
    }  # fmt: skip


def test_several_codecs_count_by_their_mean() -> None:
    one, other = (span("compress", 10, 20, unit=u, cpu_s=10 - 4 * u, core_s=4 * u) for u in (0, 1))
    assert broken_down(TRAIN, WAIT, one, other) == {**BEFORE, "core_s": 2, "codec_s": 8}


def test_the_way_back_to_training_waits_for_a_core_or_its_turn() -> None:
    wait = WAIT._replace(core_s=2)
    work = span("decompress", 10, 16)
    assert broken_down(TRAIN, wait, work) == {**BEFORE, "codec_s": 6, "queued_s": 2, "core_s": 2}
    taken = span("lock", 15, 20)
    assert broken_down(TRAIN, wait, work, taken) == {
        **BEFORE, "codec_s": 6, "lock_s": 2, "core_s": 2,
    }  # fmt: skip


def test_who_computes_does_not_wait_meanwhile() -> None:
    """A wait may be told of as a whole, with computing in it."""
    wait = span("wait", 5, 20)
    assert broken_down(TRAIN, wait, span("wire", 5, 20)) == {**BEFORE, "carried_s": 10}


@st.composite
def spans(draw: st.DrawFn) -> Span:
    times = st.integers(0, 40)
    seconds = st.none() | st.integers(0, 50)
    stage = draw(st.sampled_from(STAGES))
    began_s = draw(times)
    made = span(
        stage, began_s, began_s + draw(times), draw(st.integers(0, 3)),
        cpu_s=draw(seconds), core_s=draw(seconds), calls_s=draw(times),
    )  # fmt: skip
    if stage == "queued":
        made = made._replace(waits_for=draw(st.sampled_from(WAITS)))
    if stage == "wire":
        made = made._replace(sent_s=draw(st.none() | times))
    return made


MARKS = st.lists(st.integers(0, 90), min_size=2, max_size=6, unique=True).map(sorted)


@given(st.lists(spans(), max_size=25), MARKS)
def test_every_moment_counts_once(given_spans: list[Span], marks: list[int]) -> None:
    windows = [(float(begin), float(end)) for begin, end in itertools.pairwise(marks)]
    found = breakdowns(given_spans, windows)
    for part, (begin_s, end_s) in zip(found, windows, strict=True):
        assert part.seconds == pytest.approx(end_s - begin_s, rel=1e-12)
        assert all(getattr(part, name) >= 0 for name in NAMES)
    (whole,) = breakdowns(given_spans, [(float(marks[0]), float(marks[-1]))])
    for name in NAMES:
        assert getattr(total(found), name) == pytest.approx(getattr(whole, name), abs=1e-9)


@given(st.lists(spans(), max_size=25), st.permutations(range(25)))
def test_the_order_of_spans_does_not_matter(given_spans: list[Span], order: list[int]) -> None:
    mixed = [given_spans[index] for index in order if index < len(given_spans)]
    (one,), (other,) = (breakdowns(each, [(0.0, 80.0)]) for each in (given_spans, mixed))
    for name in NAMES:
        assert getattr(one, name) == pytest.approx(getattr(other, name), abs=1e-9)


@given(st.lists(spans(), max_size=25))
def test_what_training_does_itself_is_no_wait(given_spans: list[Span]) -> None:
    """Its stretches' length, as far as nothing else is known of them, is all that is its own."""
    (found,) = breakdowns([*given_spans, span("train", 0, 80, cpu_s=80)], [(0.0, 80.0)])
    own = (found.compute_s, found.calls_s, found.core_s, found.lock_s, found.elsewhere_s)
    assert math.fsum(own) == pytest.approx(80)
