"""Summaries of traces, worked out by hand; and what holds for any trace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import printed, refused
from hypothesis import given
from hypothesis import strategies as st

from compressa.tracing import WAITS, Span, Trace, write
from compressa.tracing.breakdown import Breakdown
from compressa.tracing.exposure import exposure
from compressa.tracing.intervals import Intervals
from compressa.tracing.inversions import inversions
from compressa.tracing.summary import Figures, Queueing, summarise

PIECES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)).map(sorted).map(tuple))


def covered(pieces: list[tuple[int, int]]) -> set[int]:
    return {time for begin, end in pieces for time in range(begin, end)}


@given(PIECES, PIECES, st.integers(0, 30), st.integers(0, 30))
def test_intervals_are_sets_of_times(
    one: list[tuple[int, int]], other: list[tuple[int, int]], begin: int, length: int
) -> None:
    left = Intervals(one) - Intervals(other)
    due = covered(one) - covered(other)
    assert covered(list(left)) == due
    pairs = list(left)
    assert pairs == sorted(pairs)
    window = range(begin, begin + length)
    assert left.within(begin, begin + length) == len(due.intersection(window))


def ready(unit: int, began_s: float, ended_s: float, need: int, step: int = 0) -> Span:
    names = (f"p{unit}.weight", f"p{unit}.bias")
    seconds = ended_s - began_s
    name = f"p{unit}.weight (+1)"
    return Span("ready", name, step, began_s, seconds, unit, need=need, parameters=names)


def queued(unit: int, began_s: float, ended_s: float, what: str, step: int = 0) -> Span:
    return Span("queued", f"p{unit}", step, began_s, ended_s - began_s, unit, waits_for=what)


def wire(
    unit: int, began_s: float, ended_s: float, sent_s: float | None = None, step: int = 0
) -> Span:
    return Span("wire", f"p{unit}", step, began_s, ended_s - began_s, unit, sent_s=sent_s)


def work(stage: str, unit: int, began_s: float, ended_s: float, step: int = 0) -> Span:
    return Span(stage, f"p{unit}", step, began_s, ended_s - began_s, unit)


def wait(began_s: float, ended_s: float, name: str = "all gradients", step: int = 0) -> Span:
    return Span("wait", name, step, began_s, ended_s - began_s)


# Two steps of 20 s. In the first, unit 1 is ready at 2 and unit 0, which is needed first, at 5.
# Unit 1's bytes leave from 4 to 9 and the link is busy until 10; unit 0 waits from 6 to 9 for it,
# and is on the wire until 15. Backward ends at 8. In the second all takes no time but one wire.
SPANS = (
    ready(1, 1, 2, need=1),
    queued(1, 2, 3, "compress"),
    work("compress", 1, 3, 3.5),
    queued(1, 3.5, 4, "turn"),
    wire(1, 4, 10, sent_s=9),
    queued(1, 10, 10.5, "decompress"),
    work("decompress", 1, 10.5, 11),
    ready(0, 3, 5, need=0),
    work("compress", 0, 5, 6),
    queued(0, 6, 9, "outbox"),
    wire(0, 9, 15, sent_s=12),
    work("decompress", 0, 15, 16),
    wait(8, 16.5),
    ready(0, 22, 23, need=0, step=1),
    wire(0, 25, 30, step=1),
    work("decompress", 0, 30, 31, step=1),
    wait(24, 31, step=1),
)
TRACE = Trace(0, 2, 0.0, SPANS, ((0, 0.0), (1, 20.0)), 40.0)


def test_the_figures_of_steps_are_those_worked_out_by_hand() -> None:
    summary = summarise(TRACE)
    none = Queueing()
    first = Figures(
        seconds=20,
        exposed_s=8.5,
        idle_s=9,  # 0 to 4, and 15 to 20
        idle_ready_s=2,  # 2 to 4: unit 1 is ready
        inversions=1,
        inverted_s=3,
        queueing={
            "compress": Queueing(1, 1, 1),
            "turn": Queueing(1, 0.5, 0.5),
            "outbox": Queueing(1, 3, 3),
            "decompress": Queueing(1, 0.5, 0.5),
        },
        # Nothing tells when messages arrive; 16 to 16.5 is the way back to the training thread.
        breakdown=Breakdown(compute_s=11.5, codec_s=1.5, wire_s=3.5, carried_s=3, queued_s=0.5),
    )
    # Nobody knows what 24 to 25 was for.
    of_second = Breakdown(compute_s=13, codec_s=1, carried_s=5, unknown_s=1)
    second = Figures(20, 7, 15, 2, 0, 0, dict.fromkeys(WAITS, none), of_second)
    assert summary.steps == ((0, first), (1, second))
    assert (first.compute_s, second.compute_s) == (11.5, 13)
    total = summary.total
    assert (total.seconds, total.exposed_s, total.idle_s, total.idle_ready_s) == (40, 15.5, 24, 4)
    assert (total.inversions, total.inverted_s, total.queueing) == (1, 3, first.queueing)
    # 8 to 11 is put down to unit 1, what comes after it to unit 0; and all of the second wait.
    assert summary.exposed == (("p0.weight (+1)", 5.5 + 7), ("p1.weight (+1)", 3))


def test_a_wait_for_one_parameter_is_put_down_to_its_unit() -> None:
    spans = [*SPANS[:12], wait(10, 16.5, "p0.bias"), wait(17, 18, "p1.weight")]
    assert exposure(spans) == {"p0.weight (+1)": 6.5, "p1.weight (+1)": 1}


def test_a_wait_within_another_counts_once() -> None:
    waits = [wait(10.8, 16, "no overlap"), wait(10.9, 15), wait(15.5, 16.5, "p0.bias")]
    found = exposure([*SPANS[:12], *waits])
    assert found == pytest.approx({"p1.weight (+1)": 0.2, "p0.weight (+1)": 5.5})


def test_exposure_shares_out_all_that_was_waited() -> None:
    waits = [wait(0, 0.5), wait(10.8, 16), wait(17, 19)]
    found = exposure([*SPANS[:12], *waits])
    due = {"all gradients": 0.5, "p1.weight (+1)": 0.2, "p0.weight (+1)": 5 + 2}
    assert found == pytest.approx(due)


def test_ninety_five_per_cent_of_waits_are_no_longer_than_told() -> None:
    spans = [queued(0, 0.01 * i, 0.01 * i + i, "turn") for i in range(1, 101)]
    trace = Trace(0, 1, 0.0, (*spans, wait(0, 1)), ((0, 0.0),), 200.0)
    turn = summarise(trace).total.queueing["turn"]
    assert (turn.waits, turn.total_s) == (100, pytest.approx(5050))
    assert turn.p95_s == pytest.approx(95)


@pytest.mark.parametrize(
    ("waiting", "other_need", "due"),
    [
        (queued(0, 2, 8, "outbox"), 1, [5]),
        (queued(0, 2, 8, "turn"), 1, [5]),
        (queued(0, 2, 8, "compress"), 1, []),  # it could not leave yet
        (queued(0, 2, 8, "outbox"), -1, []),  # the other is needed before it
        (queued(0, 7, 8, "outbox"), 1, []),  # all of the other has been sent
        (queued(0, 2, 2, "outbox"), 1, []),
    ],
)
def test_an_inversion_is_a_wait_while_what_is_needed_later_is_sent(
    waiting: Span, other_need: int, due: list[float]
) -> None:
    others = [ready(0, 0, 1, need=0), ready(1, 0, 1, need=other_need)]
    spans = [*others, waiting, wire(1, 1, 9, sent_s=7)]
    assert [found.seconds for found in inversions(spans)] == due


def test_an_earlier_step_is_needed_before_a_later_one() -> None:
    spans = [ready(0, 0, 1, need=9, step=4), ready(1, 0, 1, need=0, step=5)]
    spans += [queued(0, 2, 8, "turn", step=4), wire(1, 1, 6, step=5)]
    spans += [queued(1, 2, 8, "turn", step=5), wire(0, 1, 6, step=4)]
    assert [(found.started_s, found.seconds) for found in inversions(spans)] == [(2, 4)]


def test_several_later_ones_count_once_and_several_that_wait_count_each() -> None:
    spans = [ready(unit, 0, 1, need=unit) for unit in range(4)]
    spans += [queued(0, 2, 8, "outbox"), queued(1, 3, 8, "outbox")]
    spans += [wire(2, 1, 5), wire(3, 4, 6)]
    assert sorted(found.seconds for found in inversions(spans)) == [3, 4]


def test_the_mark_of_a_step_without_spans_ends_the_one_before() -> None:
    marked = Trace(0, 2, 0.0, SPANS, (*TRACE.steps, (2, 33.0)), 99.0)
    assert [(step, f.seconds) for step, f in summarise(marked).steps] == [(0, 20), (1, 13)]


def test_a_trace_of_nothing_is_summed_up_as_nothing() -> None:
    summary = summarise(Trace(0, 1, 0.0, (), (), 1.0))
    assert (summary.steps, summary.exposed, summary.total.seconds) == ((), (), 0)


# The command


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COLUMNS", "200")
    write(TRACE, tmp_path / "t-rank0.json")
    return tmp_path / "t-rank0.json"


def test_the_command_prints_each_step_and_all(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [line.split() for line in printed(capsys, "trace", "summary", file, file).splitlines()]
    mean = ["20,000.00", "12,250.00", "7,750.00", "12,000.00", "2,000.00", "0.5", "1,500.00"]
    assert lines.count(["0", *mean]) == 2
    first = ["20,000.00", "11,500.00", "8,500.00", "9,000.00", "2,000.00", "1", "3,000.00"]
    assert lines.count(["0", *first]) == 2
    # The mean, its share, the fastest step and the slowest; the rows add up to the last.
    assert lines.count(["not", "accounted", "for", "500.00", "2.5", "0.00", "1,000.00"]) == 2
    assert lines.count(["step", "20,000.00", "100.0", "20,000.00", "20,000.00"]) == 2
    assert lines.count(["outbox", "1", "3,000.00", "3,000.00"]) == 2
    assert lines.count(["p0.weight", "(+1)", "12,500.00", "6,250.00"]) == 2
    assert sum("rank 0 of 2, 2 steps." in " ".join(line) for line in lines) == 2


@pytest.mark.parametrize("known", [True, False])
def test_waits_for_a_core_are_told_from_the_lock_only_where_they_are_known(
    known: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    train = Span("train", "step 0", 0, 0.0, 1.0, cpu_s=0.5, core_s=0.25 if known else None)
    taken = Span("lock", "taken", 0, 0.0, 1.0)
    write(Trace(0, 1, 0.0, (train, taken), ((0, 0.0),), 1.0), tmp_path / "t.json")
    text = printed(capsys, "trace", "summary", tmp_path / "t.json")
    rows = [line.rsplit(maxsplit=3)[0] for line in text.splitlines() if line.startswith("waiting")]
    assert ("waiting for a core" in rows) is known
    assert ("waiting for the interpreter's lock" in rows) is known
    assert ("waiting for a core or the lock" in rows) is not known
    assert ("does not tell how long threads wait for a core" in text) is not known


def test_the_command_says_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    steps = tuple((step, float(step)) for step in range(7, 40))
    spans = tuple(wait(step, step + 0.5, step=step) for step, _ in steps)
    write(Trace(1, 4, 0.0, spans, steps, 40.0, 7, 5), tmp_path / "t.json")
    text = printed(capsys, "trace", "summary", tmp_path / "t.json")
    assert "rank 1 of 4, 33 steps; the last 20 are shown; 7 before them were dropped" in text
    assert "5 spans are missing" in text
    shown = [line.split()[0] for line in text.splitlines() if line.endswith(" 0.00")]
    assert shown[1:21] == [str(step) for step in range(20, 40)]


def test_the_command_shows_names_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    waits = wait(0.0, 0.5, name="[red]w[/red]\x1b[2J")
    write(Trace(0, 1, 0.0, (waits,), ((0, 0.0),), 1.0), tmp_path / "t.json")
    assert r"[red]w[/red]\x1b[2J" in printed(capsys, "trace", "summary", tmp_path / "t.json")


def test_the_command_prints_json(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (told,) = json.loads(printed(capsys, "trace", "summary", file, "--json"))
    assert (told["file"], told["rank"], told["size"]) == (str(file), 0, 2)
    assert [step["step"] for step in told["steps"]] == [0, 1]
    assert told["steps"][0]["inverted_s"] == pytest.approx(3)
    assert told["total"]["compute_s"] == pytest.approx(24.5)
    assert told["total"]["breakdown"]["carried_s"] == pytest.approx(8)
    assert told["steps"][1]["breakdown"]["unknown_s"] == pytest.approx(1)
    assert (told["training_known"], told["cores_known"]) == (False, False)
    assert told["total"]["queueing"]["outbox"]["waits"] == 1
    assert told["exposed"][0]["name"] == "p0.weight (+1)"


def test_the_command_refuses_other_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.json").write_text("{}")
    said = refused(capsys, "trace", "summary", tmp_path / "x.json")
    assert "x.json: otherData: Field required" in said
