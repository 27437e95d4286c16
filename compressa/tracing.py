"""Spans of work, written as a Chrome trace (chrome://tracing, ui.perfetto.dev)."""

from __future__ import annotations

import json
from pathlib import Path

_TRACKS = {"encode": 1, "wire": 2, "decode": 3}


class Tracer:
    """Collects spans in memory while a path is given; costs one comparison otherwise.

    Args:
        path: Where `write` puts the trace; the rank is added to its name. None: off.
    """

    def __init__(self, path: str | Path | None) -> None:
        self._path = Path(path) if path is not None else None
        self._spans: list[tuple[str, str, int, float, float]] = []

    def span(self, stage: str, name: str, step: int, started_s: float, seconds: float) -> None:
        """Note that a unit spent some seconds in a stage."""
        if self._path is not None:
            self._spans.append((stage, name, step, started_s, seconds))

    def write(self, rank: int) -> None:
        """Write what was collected to `<path stem>-rank<rank><suffix>`."""
        if self._path is None or not self._spans:
            return
        events: list[dict[str, object]] = [
            {"ph": "M", "name": "thread_name", "pid": rank, "tid": tid, "args": {"name": stage}}
            for stage, tid in _TRACKS.items()
        ]
        for stage, name, step, started_s, seconds in self._spans:
            times = {"ts": started_s * 1e6, "dur": seconds * 1e6}
            where = {"pid": rank, "tid": _TRACKS[stage]}
            events.append({"ph": "X", "name": name, "args": {"step": step}, **where, **times})
        target = self._path.with_name(f"{self._path.stem}-rank{rank}{self._path.suffix}")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps({"traceEvents": events}))
