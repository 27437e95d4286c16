"""What transports tell of messages is put to the exchanges that they belong to."""

from __future__ import annotations

from compressa.tracing.assembly import CAME, LEFT, assembled
from compressa.tracing.breakdown import breakdowns
from compressa.tracing.events import Span


def wire(started_s: float, seconds: float, **more: int) -> Span:
    return Span("wire", "w", 3, started_s, seconds, 1, 4, size_bytes=10, peers=2, **more)


def message(kind: str, number: int, begin_s: float, end_s: float) -> Span:
    return Span(kind, "", 3, begin_s, end_s - begin_s, 1, number)


def test_what_waits_in_the_outbox_is_told_apart() -> None:
    told = [wire(1.0, 4.0), message(LEFT, 4, 2.0, 3.0), message(CAME, 4, 4.0, 4.5)]
    queued, carried, came = assembled(told)
    assert (queued.stage, queued.waits_for, queued.seconds) == ("queued", "outbox", 1.0)
    assert (carried.started_s, carried.sent_s, carried.ended_s) == (2.0, 3.0, 5.0)
    assert (came.stage, came.started_s, came.ended_s) == ("arrive", 4.0, 4.5)


def test_of_a_sum_each_hop_is_told() -> None:
    """Two hops, of which other programs have the numbers in between."""
    told = [
        wire(1.0, 8.0, exchanges=2, stride=3),
        message(LEFT, 4, 2.0, 3.0),
        message(CAME, 4, 4.0, 5.0),
        message(LEFT, 7, 5.5, 6.0),
        message(CAME, 7, 8.0, 8.5),
        message(LEFT, 5, 1.0, 9.0),
    ]
    spans = assembled(told)
    carried = [span for span in spans if span.stage == "wire"]
    assert [(s.number, s.started_s, s.sent_s) for s in carried] == [
        (4, 2.0, None),
        (4, 2.0, 3.0),
        (7, 5.5, 6.0),
    ]
    assert [s.size_bytes for s in carried] == [10, 0, 0]
    assert [s.seconds for s in spans if s.stage == "queued"] == [1.0]
    assert [s.number for s in spans if s.stage == "arrive"] == [4, 7]

    wait = Span("wait", "w", 3, 1.0, 8.0)
    train = Span("train", "", 3, 0.0, 1.0, cpu_s=1.0)
    (found,) = breakdowns([*spans, wait, train], [(0.0, 9.0)])
    assert found.compute_s == 1.0
    assert found.queued_s == 1.0
    assert found.wire_s == 1.0 + 1.0 + 0.5 + 0.5  # it leaves and comes, twice
    assert found.peers_s == 1.0 + 2.0  # between
    assert found.carried_s == 0.5 + 0.5  # when it was added, and reported
    assert found.seconds == 9.0


def test_a_sum_of_which_nothing_was_told_is_as_it_was_recorded() -> None:
    (only,) = assembled([wire(1.0, 8.0, exchanges=2)])
    assert only == wire(1.0, 8.0, exchanges=2)
