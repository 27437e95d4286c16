"""Writer: a trace as JSON for Perfetto (ui.perfetto.dev) and chrome://tracing.

Each stage has a track; what overlaps in a stage is shown on further tracks of its name, since
viewers want what shares a track to be nested. Times are unix time from `unix_s` on, by the rank's
clock, so that traces of several ranks can be opened together; in eighths of a microsecond, which
are exact in binary and in nanoseconds, so that what follows at once does not seem to overlap.
"""

from __future__ import annotations

import heapq
import json
import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from compressa.tracing.events import NO_UNIT, STAGES, Span, Trace

FORMAT = "compressa.trace"
FORMAT_VERSION = 1

_TICKS_PER_US = 8
_ERA_S = 1 << 22  # times are counted from a multiple of it: in nanoseconds they fit into a double
_MOST_ROWS = 10_000


def write(trace: Trace, path: Path) -> None:
    """Write a trace, whole or not at all.

    Args:
        trace: Of one rank.
        path: Of a JSON file, which is replaced.

    Raises:
        OSError: It can not be written.
    """
    unix_s = math.floor((trace.unix_s + trace.ended_s) / _ERA_S) * _ERA_S
    about = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "rank": trace.rank,
        "ranks": trace.size,
        "unix_s": unix_s,
        "perf_counter_zero_unix_s": trace.unix_s,
        "dropped_steps": trace.dropped_steps,
        "dropped_spans": trace.dropped_spans,
    }
    head = {"displayTimeUnit": "ms", "otherData": about}
    part = path.with_name(path.name + ".part")
    try:
        with part.open("w", encoding="utf-8") as file:
            file.write(json.dumps(head)[:-1] + ', "traceEvents": [\n')
            for number, event in enumerate(_events(trace, trace.unix_s - unix_s)):
                file.write((",\n" if number else "") + json.dumps(event))
            file.write("\n]}\n")
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _events(trace: Trace, offset_s: float) -> Iterator[dict[str, Any]]:
    def us(time_s: float) -> float:
        return _us(time_s + offset_s)

    pid = trace.rank
    yield {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": f"rank {pid}"}}
    yield from _track(pid, 0, "steps")
    mark = {"ph": "i", "s": "p", "pid": pid, "tid": 0}
    for step, began_s in trace.steps:
        about = {"cat": "step", "name": f"step {step}", "args": {"step": step}}
        yield {**mark, **about, "ts": us(began_s)}
    yield {**mark, "cat": "end", "name": "end of the trace", "args": {}, "ts": us(trace.ended_s)}
    for index, stage in enumerate(STAGES):
        placed = [_Placed(us(s.started_s), us(s.ended_s), s) for s in trace.spans if s[0] == stage]
        known = 0
        for row, (began_us, ended_us, span) in _in_rows(placed):
            tid = 1 + index * _MOST_ROWS + row
            if row == known:
                known += 1
                yield from _track(pid, tid, f"{stage} {known}" if row else stage)
            what = {"ph": "X", "cat": stage, "name": span.name, "pid": pid, "tid": tid}
            args = _args(span)
            if span.sent_s is not None:
                args["sending_us"] = us(span.sent_s) - began_us
            yield {**what, "ts": began_us, "dur": ended_us - began_us, "args": args}


def _track(pid: int, tid: int, name: str) -> Iterator[dict[str, Any]]:
    where = {"ph": "M", "pid": pid, "tid": tid}
    yield {**where, "name": "thread_name", "args": {"name": name}}
    yield {**where, "name": "thread_sort_index", "args": {"sort_index": tid}}


class _Placed(NamedTuple):
    began_us: float
    ended_us: float
    span: Span


def _in_rows(spans: Iterable[_Placed]) -> Iterator[tuple[int, _Placed]]:
    """Put each span onto the first row that is free, so that no two on a row overlap."""
    free: list[int] = []
    taken: list[tuple[float, int]] = []  # until when
    for placed in sorted(spans, key=lambda placed: placed[:2]):
        while taken and taken[0][0] <= placed.began_us:
            heapq.heappush(free, heapq.heappop(taken)[1])
        row = heapq.heappop(free) if free else len(taken)
        heapq.heappush(taken, (placed.ended_us, row))
        yield row, placed


def _args(span: Span) -> dict[str, Any]:
    """What belongs to a span's stage."""
    args: dict[str, Any] = {"step": span.step}
    if span.unit != NO_UNIT:
        args |= {"unit": span.unit, "exchange": span.number}
    if span.stage == "queued":
        args["for"] = span.waits_for
    elif span.stage == "wire":
        args |= {"bytes": span.size_bytes, "peers": span.peers}
    elif span.stage == "ready":
        args |= {"need": span.need, "parameters": span.parameters}
    elif span.stage == "train":
        args["calls_us"] = _us(span.calls_s)
    for name, seconds in (("cpu_us", span.cpu_s), ("core_us", span.core_s)):
        if seconds is not None:
            args[name] = _us(seconds)
    return args


def _us(seconds: float) -> float:
    return round(seconds * 1e6 * _TICKS_PER_US) / _TICKS_PER_US
