"""Traces of real ranks: every unit's stages are there, in order, inside their step, by name."""

from __future__ import annotations

import gc
import itertools
import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from _rank_models import build, loss_of
from _ranks import Group, settings
from _training import registered, train
from _until import until

from compressa.tracing import Recording, Span, Trace
from compressa.tracing.reader import read

pytestmark = pytest.mark.ranks

_TICK_S = 1e-6 / 8
ORDER = ("ready", "queued", "compress", "queued", "queued", "wire", "queued", "decompress")


def _train(wrapped: Any, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(wrapped, dist.get_rank(), step, torch.float32).backward()
        optimizer.step()


def traced(*, config: Any, path: str | None, before: int = 2, steps: int = 4) -> dict[str, Any]:
    """Train, some of it in a `with handle.trace`; return what the trace should tell."""
    net = build("mlp", dist.get_rank())
    with registered(net, config) as (wrapped, handle):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        _train(wrapped, optimizer, before)
        if path is None:
            _train(wrapped, optimizer, steps)
        else:
            with handle.trace(path):
                _train(wrapped, optimizer, steps)
            assert Path(path).with_name(f"trace-rank{dist.get_rank()}.json").exists()
        _train(wrapped, optimizer, 1)
        stats = handle.stats()
    return {
        "names": [name for name, _ in net.named_parameters()],
        "messages": stats.messages,
        "recorded": recorded(),
    }


def recorded() -> list[str]:
    """Name all that was recorded and that anything holds, once threads that end have let it go."""

    def held() -> list[str]:
        gc.collect()
        found = [each for each in gc.get_objects() if isinstance(each, Recording | Span)]
        return [str(each.path if isinstance(each, Recording) else each) for each in found]

    until(lambda: not held())
    return held()


def traced_several_times(*, config: Any, folder: str) -> list[list[str]]:
    """Trace again and again; return which files are there after each call."""
    net = build("mlp", dist.get_rank())
    seen = []

    def look() -> None:
        mine = f"*-rank{dist.get_rank()}.json"
        seen.append(sorted(file.name for file in Path(folder).glob(mine)))

    with registered(net, config) as (wrapped, handle):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        _train(wrapped, optimizer, 1)
        with handle.trace(f"{folder}/first.json"):
            _train(wrapped, optimizer, 1)
            handle.trace(f"{folder}/second.json")
            look()
            _train(wrapped, optimizer, 1)
        look()  # the end of the first does not end the second
        handle.trace(None)
        look()
        handle.trace(None)
        handle.trace(f"{folder}/third.json")
        _train(wrapped, optimizer, 1)
    look()
    return seen


def ways(trace: Trace) -> Mapping[tuple[int, int], list[Span]]:
    """By step and unit, what happened to it, in order."""
    found = defaultdict(list)
    for span in sorted(trace.spans, key=lambda span: (span.started_s, span.ended_s)):
        if span.unit >= 0 and span.stage != "arrive":
            found[span.step, span.unit].append(span)
    return found


def check_way(way: list[Span]) -> None:
    assert way[0].stage == "ready"
    assert way[-1].stage == "decompress"
    for one, other in itertools.pairwise(way):
        assert one.ended_s <= other.started_s + 2 * _TICK_S, (one, other)
        assert one.stage == "queued" or other.stage in ("queued", "wire"), (one, other)
        if one.stage == "queued":
            follows = {"turn": {"wire", "queued"}, "outbox": {"wire"}}
            assert other.stage in follows.get(one.waits_for, {one.waits_for})
    assert {span.stage for span in way} == set(ORDER)


def check(trace: Trace, steps: range, names: list[str]) -> None:
    assert [step for step, _ in trace.steps] == list(steps)
    begun = dict(trace.steps)
    ends = {**{step: begun[step + 1] for step in steps[:-1]}, steps[-1]: trace.ended_s}
    found = ways(trace)
    units = {unit for _, unit in found}
    assert len(units) > 2
    assert set(found) == set(itertools.product(steps, units))
    for (step, _), way in found.items():
        check_way(way)
        assert begun[step] <= way[0].started_s
        assert way[-1].ended_s <= ends[step]
        for span in way:
            assert {span.name.split(" (+")[0].split("[")[0]} <= set(names)
        assert sum(span.seconds for span in way) <= ends[step] - begun[step] + len(way) * _TICK_S
    for step in steps:
        ready = [way[0] for (s, _), way in found.items() if s == step]
        assert {name for span in ready for name in span.parameters} == set(names)
        assert sorted(span.need for span in ready) == sorted(units)
        (wait,) = (span for span in trace.spans if span.stage == "wait" and span.step == step)
        assert begun[step] <= wait.started_s
        last = max(way[-1].ended_s for (s, _), way in found.items() if s == step)
        assert last <= wait.ended_s <= ends[step]


@pytest.mark.parametrize("compressor", ["int8", "powersgd"])
def test_a_trace_shows_every_unit_of_every_step(
    two: Group, tmp_path: Path, compressor: str
) -> None:
    config = settings(compressor)
    path = str(tmp_path / "made" / "trace.json")
    for rank, told in enumerate(two.run(traced, config=config, path=path)):
        trace = read(tmp_path / "made" / f"trace-rank{rank}.json")
        assert (trace.rank, trace.size) == (rank, 2)
        assert (trace.dropped_steps, trace.dropped_spans) == (0, 0)
        check(trace, range(2, 6), told["names"])
        wires = [span for span in trace.spans if span.stage == "wire"]
        assert all(span.peers == 1 and span.size_bytes > 0 for span in wires)
        check_messages(trace, wires)
        assert told["recorded"] == []
    check_one_clock([tmp_path / "made" / f"trace-rank{rank}.json" for rank in (0, 1)])


def check_messages(trace: Trace, wires: list[Span]) -> None:
    """Where it is known when a message left, it is known when the peer's came, in the exchange.

    Sums that run without the interpreter do not tell.
    """
    told = {(s.step, s.unit, s.number): s for s in wires if s.sent_s is not None}
    came = [span for span in trace.spans if span.stage == "arrive"]
    found = {(s.step, s.unit, s.number) for s in came}
    assert found <= told.keys()
    # A peer may be ahead: what had begun to come before the first step is not told.
    first = min((step for step, *_ in told), default=0)
    assert all(step == first for step, *_ in told.keys() - found)
    for span in came:
        wire = told[span.step, span.unit, span.number]
        assert span.ended_s <= wire.ended_s + 2 * _TICK_S
        assert span.name == wire.name


def check_one_clock(files: list[Path]) -> None:
    """On one machine: an exchange cannot end on one rank before it began on the other."""
    traces = [read(file) for file in files]
    stated = [json.loads(file.read_text())["otherData"]["unix_s"] for file in files]
    assert stated == [traces[0].unix_s] * 2 == [trace.unix_s for trace in traces]
    first, second = (
        {(s.step, s.unit, s.number): s for s in trace.spans if s.stage == "wire"}
        for trace in traces
    )
    assert first.keys() == second.keys()
    for key, span in first.items():
        other = second[key]
        assert max(span.started_s, other.started_s) < min(span.ended_s, other.ended_s)


def test_what_is_recorded_by_configuration_is_written_at_close(two: Group, tmp_path: Path) -> None:
    trace = {"path": str(tmp_path / "t.json"), "steps": [1, 3]}
    config = settings("int8", trace=trace)
    for rank, told in enumerate(two.run(traced, config=config, path=None, before=0, steps=5)):
        check_steps(read(tmp_path / f"t-rank{rank}.json"), [1, 2, 3, 4])
        assert told["recorded"] == []


def check_steps(trace: Trace, begun: list[int]) -> None:
    """The last mark only says when the step before it ended."""
    assert [step for step, _ in trace.steps] == begun
    assert {span.step for span in trace.spans} == set(begun[:-1])


def test_nothing_is_recorded_unless_asked_for(two: Group, tmp_path: Path) -> None:
    for told in two.run(traced, config=settings("int8"), path=None):
        assert told["recorded"] == []
    assert not list(tmp_path.iterdir())


def test_a_trace_ends_with_its_block_or_the_next_or_the_handle(two: Group, tmp_path: Path) -> None:
    seen = two.run(traced_several_times, config=settings("int8"), folder=str(tmp_path))
    for rank, looks in enumerate(seen):
        first, second, third = (f"{name}-rank{rank}.json" for name in ("first", "second", "third"))
        assert looks == [[first], [first], [first, second], [first, second, third]]
        kept = [read(tmp_path / name).steps[0][0] for name in (first, second, third)]
        assert kept == [1, 2, 3]


def test_where_nothing_can_be_written_no_rank_begins(two: Group, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    config: dict[str, Any] = settings("int8", trace={"path": str(tmp_path / "file" / "t.json")})
    for outcome in two.errors(train, config=config):
        assert outcome.error is not None
        assert outcome.error["type"] == "ConfigError"
        assert "trace.path: no trace can be written to" in outcome.error["message"]
