"""Files of traces: what is written comes back, viewers can show it, and rubbish is refused."""

from __future__ import annotations

import itertools
import json
import math
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compressa.errors import ConfigError
from compressa.tracing import STAGES, WAITS, Span, Trace, write
from compressa.tracing.reader import read

UNIX_S = 1.75e9
TICK_S = 1e-6 / 8
EXACT_S = [0.0, 3e-6, 2.5, 1e4]
TIMES = st.floats(0, 1e5, allow_nan=False)


@st.composite
def spans(draw: st.DrawFn) -> Span:
    stage = draw(st.sampled_from(STAGES))
    seconds = draw(st.one_of(st.just(0.0), st.floats(0, 10)))
    span = Span(
        stage, draw(st.text(max_size=9)), draw(st.integers(0, 3)), draw(TIMES), seconds,
        draw(st.integers(-1, 4)),
    )  # fmt: skip
    if span.unit >= 0:
        span = span._replace(number=draw(st.integers(0, 3)))
    if stage == "queued":
        span = span._replace(waits_for=draw(st.sampled_from(WAITS)))
    if stage == "wire":
        sent_s = draw(st.one_of(st.none(), st.just(span.started_s + seconds / 2)))
        span = span._replace(size_bytes=draw(st.integers(0, 1 << 40)), peers=3, sent_s=sent_s)
    if stage == "ready":
        names = draw(st.lists(st.text(max_size=5), max_size=3))
        span = span._replace(need=draw(st.integers(0, 9)), parameters=tuple(names))
    if stage == "train":
        span = span._replace(calls_s=draw(st.sampled_from(EXACT_S)))
    some_s = st.none() | st.sampled_from(EXACT_S)
    return span._replace(cpu_s=draw(some_s), core_s=draw(some_s))


@settings(max_examples=40)
@given(st.lists(spans(), max_size=30), st.lists(TIMES, max_size=4))
def test_what_is_written_comes_back(
    tmp_path_factory: pytest.TempPathFactory, given_spans: list[Span], marks: list[float]
) -> None:
    path = tmp_path_factory.mktemp("trace") / "t.json"
    steps = tuple(enumerate(sorted(marks)))
    trace = Trace(2, 5, UNIX_S, tuple(given_spans), steps, 2e5, 3, 4)
    write(trace, path)
    back = read(path)
    assert (back.rank, back.size, back.dropped_steps, back.dropped_spans) == (2, 5, 3, 4)
    assert [step for step, _ in back.steps] == [step for step, _ in steps]
    offset_s = UNIX_S - back.unix_s
    tolerance = TICK_S / 2 + 1e-9

    assert len(back.spans) == len(trace.spans)
    unmatched = [span._replace(started_s=span.started_s - offset_s) for span in back.spans]
    for span in trace.spans:
        (found, *_) = (
            other
            for other in unmatched
            if _bare(other) == _bare(span)
            and abs(other.started_s - span.started_s) <= tolerance
            and abs(other.ended_s - span.ended_s) <= 2 * tolerance
            and _same_time(other.sent_s, span.sent_s, offset_s, 2 * tolerance)
        )
        unmatched.remove(found)


def _bare(span: Span) -> Span:
    return span._replace(started_s=0.0, seconds=0.0, sent_s=None)


def _same_time(one: float | None, other: float | None, offset_s: float, most_s: float) -> bool:
    if one is None or other is None:
        return one is other
    return abs(one - offset_s - other) <= most_s


@settings(max_examples=40)
@given(st.lists(spans(), max_size=40))
def test_nothing_overlaps_on_a_track_and_tracks_are_named_after_stages(
    tmp_path_factory: pytest.TempPathFactory, given_spans: list[Span]
) -> None:
    path = tmp_path_factory.mktemp("trace") / "t.json"
    write(Trace(1, 2, UNIX_S, tuple(given_spans), (), 2e5), path)
    events = json.loads(path.read_text())["traceEvents"]
    assert {event["pid"] for event in events} == {1}
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    tracks = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[event["tid"]].append(event)
            assert names[event["tid"]].split()[0] == event["cat"]
    for track in tracks.values():
        for one, other in itertools.pairwise(track):
            # In the nanoseconds that viewers count in, which both numbers give exactly.
            assert int(one["ts"] * 1000) + int(one["dur"] * 1000) <= int(other["ts"] * 1000)
            assert (one["ts"] * 1000).is_integer()
    busiest = max(_most_at_once(given_spans, stage) for stage in STAGES)
    assert len(set(names.values()) - {"steps"}) <= busiest * len(STAGES)


def _most_at_once(given_spans: list[Span], stage: str) -> int:
    own = [span for span in given_spans if span.stage == stage]
    reach = [(s.started_s - TICK_S, s.ended_s + TICK_S) for s in own]
    return max((sum(b <= begin <= e for b, e in reach) for begin, _ in reach), default=0)


def test_stages_that_never_overlap_have_one_track_each(tmp_path: Path) -> None:
    rows = [Span(stage, "p", 0, i + 0.1, 0.9) for i in range(5) for stage in STAGES]
    write(Trace(0, 1, UNIX_S, tuple(rows), ((0, 0.0),), 9.0), tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    named = [e["args"]["name"] for e in events if e["name"] == "thread_name"]
    assert named == ["steps", *STAGES]
    (mark,) = (e for e in events if e.get("cat") == "step")
    assert (mark["ph"], mark["name"], mark["args"]) == ("i", "step 0", {"step": 0})


def test_a_trace_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    good = Trace(0, 1, UNIX_S, (), ((0, 0.0),), 9.0)
    write(good, tmp_path / "t.json")
    before = (tmp_path / "t.json").read_bytes()
    bad = Span("wire", "p", 0, 0.0, math.inf)
    with pytest.raises(OverflowError):
        write(Trace(0, 1, UNIX_S, (bad,), (), 9.0), tmp_path / "t.json")
    assert (tmp_path / "t.json").read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["t.json"]
    assert read(tmp_path / "t.json").steps[0][0] == 0


def small() -> dict[str, Any]:
    """A trace with one event of each kind, as JSON."""
    about = {
        "format": "compressa.trace",
        "format_version": 1,
        "rank": 0,
        "ranks": 2,
        "unix_s": 0,
        "dropped_steps": 0,
        "dropped_spans": 0,
    }
    span = {"ph": "X", "cat": "wire", "name": "p", "ts": 5, "dur": 1.5, "args": {"step": 0}}
    spent = {"step": 0, "cpu_us": 2, "core_us": 0.5, "calls_us": 1}
    return {
        "otherData": about,
        "traceEvents": [
            {"ph": "M", "name": "process_name", "args": {"name": "rank 0"}},
            {"ph": "i", "cat": "step", "name": "step 0", "ts": 1, "args": {"step": 0}},
            span,
            {"ph": "X", "cat": "train", "name": "step 0", "ts": 1, "dur": 4, "args": spent},
            {"ph": "i", "cat": "end", "name": "", "ts": 9, "args": {}},
        ],
    }


def test_what_viewers_add_is_passed_over(tmp_path: Path) -> None:
    trace = small()
    trace["more"] = trace["otherData"]["more"] = trace["traceEvents"][2]["args"]["more"] = 1
    (tmp_path / "t.json").write_text(json.dumps(trace))
    span, _ = read(tmp_path / "t.json").spans
    assert (span.stage, span.started_s, span.seconds) == ("wire", 5e-6, 1.5e-6)


def test_a_trace_of_before_clocks_of_threads_were_read_is_read(tmp_path: Path) -> None:
    trace = small()
    del trace["traceEvents"][3]
    (tmp_path / "t.json").write_text(json.dumps(trace))
    (span,) = read(tmp_path / "t.json").spans
    assert (span.cpu_s, span.core_s, span.calls_s) == (None, None, 0.0)


Change = Callable[[dict[str, Any]], object]
MISTAKES: dict[str, tuple[Change, str]] = {
    "another program's": (lambda t: t.pop("otherData"), "otherData: Field required"),
    "no events": (lambda t: t.pop("traceEvents"), "traceEvents: Field required"),
    "a later version": (
        lambda t: t["otherData"].update(format_version=2),
        "otherData.format_version: Input should be 1",
    ),
    "cut": (lambda t: t["traceEvents"].pop(), "should have one end, and has 0"),
    "two in one": (
        lambda t: t["traceEvents"].append(t["traceEvents"][-1]),
        "should have one end, and has 2",
    ),
    "unknown stage": (
        lambda t: t["traceEvents"][2].update(cat="lunch"),
        "traceEvents.2.X.cat: Input should be 'ready'",
    ),
    "unknown kind": (lambda t: t["traceEvents"][2].update(ph="Q"), "traceEvents.2: Input tag 'Q'"),
    "negative time": (
        lambda t: t["traceEvents"][2].update(dur=-1),
        "traceEvents.2.X.dur: Input should be greater than or equal to 0",
    ),
    "infinite time": (
        lambda t: t["traceEvents"][2].update(ts=math.inf),
        "traceEvents.2.X.ts: Input should be a finite number",
    ),
    "a number as text": (
        lambda t: t["traceEvents"][2]["args"].update(step="0"),
        "traceEvents.2.X.args.step: Input should be a valid integer",
    ),
    "a negative time on a core": (
        lambda t: t["traceEvents"][3]["args"].update(cpu_us=-1),
        "traceEvents.3.X.args.cpu_us: Input should be greater than or equal to 0",
    ),
    "a time without a core that is none": (
        lambda t: t["traceEvents"][3]["args"].update(core_us=math.nan),
        "traceEvents.3.X.args.core_us: Input should be a finite number",
    ),
    "a time in calls as text": (
        lambda t: t["traceEvents"][3]["args"].update(calls_us="1"),
        "traceEvents.3.X.args.calls_us: Input should be a valid number",
    ),
    "an endless number": (
        lambda t: t["traceEvents"][2]["args"].update(step=10**400),
        "traceEvents.2.X.args.step: ",
    ),
    "a wait for nothing": (
        lambda t: t["traceEvents"][2].update(cat="queued"),
        'traceEvents.2.X: Value error, what is queued must say "for" what',
    ),
    "an unknown wait": (
        lambda t: t["traceEvents"][2]["args"].update({"for": "godot"}),
        "traceEvents.2.X.args.for: Input should be 'compress'",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_rubbish_is_refused_with_its_place(tmp_path: Path, mistake: str) -> None:
    change, message = MISTAKES[mistake]
    trace = small()
    change(trace)
    (tmp_path / "t.json").write_text(json.dumps(trace))
    with pytest.raises(ConfigError) as caught:
        read(tmp_path / "t.json")
    assert str(caught.value).startswith(f"{tmp_path / 't.json'}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"\xff\xfe", b"[]", b"{", b"[" * 100_000])
def test_what_is_no_json_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "t.json").write_bytes(data)
    with pytest.raises(ConfigError, match="give a file that handle"):
        read(tmp_path / "t.json")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.json: cannot be read: No such file"):
        read(tmp_path / "none.json")
