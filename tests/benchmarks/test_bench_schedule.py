"""`python -m benchmarks schedule`: its file, what is judged, and what it shows."""

from __future__ import annotations

import json
import statistics
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from compressa.schedulers import POLICIES
from typer.testing import CliRunner

from benchmarks.__main__ import app
from benchmarks.schedule.costs import chunk_costs
from benchmarks.schedule.jobs import Steps as JobSteps
from benchmarks.schedule.jobs import of_alone, waits_s
from benchmarks.schedule.plan import AUTO, DDP, EXCHANGED, METHODS, Settings
from benchmarks.schedule.records import (
    Case,
    Header,
    Jobs,
    Overhead,
    Pipelined,
    Pushes,
    ScheduleMeasurement,
    Step,
    Traced,
)
from benchmarks.schedule.run import ScheduleBench
from benchmarks.schedule.steps import Steps
from benchmarks.schedule.tables import verdicts
from compressa.errors import ConfigError

NOW = datetime(2026, 5, 1, tzinfo=UTC)


def case(compressor: str = "none", ratio: float = 1.0) -> Case:
    return Case(
        compressor=compressor,
        ratio=ratio,
        link="200mbit",
        batch=100,
        forward_s=0.1,
        backward_s=0.2,
        communication_s=0.31,
        rounds=3,
        timestamp=NOW,
    )


def step(method: str, median_s: float, **given: Any) -> Step:
    fields = {"compressor": "none", "ratio": 1.0, "simulated_s": None, "load": 0.9, **given}
    return Step(
        method=method, median_s=median_s, p20_s=median_s, p80_s=median_s, timestamp=NOW, **fields
    )


def pipelined(wire_s: float, pipelined_s: float) -> Pipelined:
    return Pipelined(
        compressor="int8",
        link="500mbit",
        units=32,
        encode_s=0.01,
        wire_s=wire_s,
        decode_s=0.01,
        apart_s=wire_s + 0.03,
        pipelined_s=pipelined_s,
        load=0.5,
        timestamp=NOW,
    )


def two_jobs(**given: Any) -> Jobs:
    row = Jobs(
        link="100mbit",
        port="fair",
        size_bytes=2_000_000,
        alone_s=0.345,
        communication=0.5,
        jitter=0.1,
        unstaggered=(1.5, 1.5),
        staggered=(1.0, 1.2),
        medians=((1.5, 1.5), (1.0, 1.2)),
        worsts=((2.0, 2.1), (1.1, 1.3)),
        burstiness=(None, None, None),
        timestamp=NOW,
    )
    return row.model_copy(update=given)


def traced(ratio: float, ratio_high: float) -> Traced:
    spread = {"ratio": ratio, "ratio_low": 0.99, "ratio_high": ratio_high}
    return Traced(step_s=0.1, cpu_ratio=1, timestamp=NOW, **spread)


def pushes(**given: Any) -> Pushes:
    row = Pushes(
        link="1gbit",
        size_bytes=1,
        round_s=(1.0, 1.01),
        retransmitted=(50, 0),
        peak_bytes=(400, 100),
        burstiness=(3.0, 1.0),
        timestamp=NOW,
    )
    return row.model_copy(update=given)


def measurement(**rows: Any) -> ScheduleMeasurement:
    header = Header.here({"torch": "2"}, parameters=1000, layers=20, budget_s=40.0)
    return ScheduleMeasurement(header=header, **rows)


def judged(found: ScheduleMeasurement) -> dict[str, bool | None]:
    return {verdict.target: verdict.met for verdict in verdicts(found)}


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("header", "format"), "compressa.bench.exchange"),
        (("header", "hosts"), 3),
        (("cases", 0, "forward_s"), -1),
        (("cases", 0, "communication_s"), float("nan")),
        (("cases", 0, "stranger"), 1),
        (("steps", 0, "median_s"), 5.0),
        (("steps", 0, "ratio"), 2.0),
        (("steps", 0, "load"), float("inf")),
        (("pipelined", 0, "units"), 0),
    ],
)
def test_a_file_that_is_none_is_refused_with_its_place(
    tmp_path: Path, place: tuple[str | int, ...], value: object
) -> None:
    file = tmp_path / "schedule.json"
    found = measurement(cases=[case()], steps=[step(AUTO, 0.33)], pipelined=[pipelined(0.04, 0.05)])
    tree = json.loads(found.model_dump_json())
    inner: Any = tree
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    file.write_text(json.dumps(tree))
    with pytest.raises(ConfigError, match="is no measurement of `python -m benchmarks schedule`"):
        ScheduleMeasurement.read(file)


def test_rows_of_a_case_that_is_measured_again_go_and_others_stay() -> None:
    old = measurement(
        cases=[case(), case(ratio=2.0)],
        steps=[step(AUTO, 0.4), step(EXCHANGED, 0.5), step(AUTO, 0.6, ratio=2.0)],
        pipelined=[pipelined(0.04, 0.05)],
    )
    new = old.updated(measurement(cases=[case()], steps=[step(AUTO, 0.3)]))
    assert [(s.method, s.ratio, s.median_s) for s in new.steps] == [
        (AUTO, 2.0, 0.6),
        (AUTO, 1.0, 0.3),
    ]
    assert len(new.cases) == 2
    assert new.pipelined == old.pipelined


@pytest.mark.parametrize("other", [{"parameters": 999}, {"cpu": "another"}])
def test_a_file_of_another_model_or_machine_is_refused_before_anything_is_measured(
    other: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "older.json"
    header = ScheduleBench(Settings()).found.header.model_copy(update=other)
    ScheduleMeasurement(header=header).write(file)
    monkeypatch.setattr(ScheduleBench, "run", lambda bench: iter(lambda: pytest.fail("it did"), 0))
    done = CliRunner().invoke(app, ["schedule", "--update", str(file)])
    assert isinstance(done.exception, ConfigError)
    assert "write another file" in str(done.exception)
    assert f"{next(iter(other))} is {next(iter(other.values()))}" in str(done.exception)


def test_a_step_is_judged_by_its_ideal_and_by_the_fastest_of_ddp() -> None:
    slow, fast = DDP[0].name, DDP[1].name
    rows = [step(slow, 0.5), step(fast, 0.42), step(AUTO, 0.34), step(EXCHANGED, 0.2)]
    met = judged(measurement(cases=[case()], steps=rows))
    assert met == {"step, of the ideal": True, "faster than DDP": False}
    rows[2] = step(AUTO, 0.31 * 1.11)
    assert not judged(measurement(cases=[case()], steps=rows))["step, of the ideal"]


def test_ddp_is_beaten_at_equal_times_only_where_that_is_asked() -> None:
    rows = [step(DDP[0].name, 0.5, ratio=2.0), step(AUTO, 0.4, ratio=2.0)]
    assert set(judged(measurement(cases=[case(ratio=2.0)], steps=rows))) == {"step, of the ideal"}


def test_the_worst_of_the_simulated_steps_counts() -> None:
    rows = [step(EXCHANGED, 0.4, simulated_s=0.3), step(AUTO, 0.32, simulated_s=0.32)]
    (found,) = [
        v for v in verdicts(measurement(cases=[case()], steps=rows)) if v.target == "simulated step"
    ]
    assert (found.met, found.reached, found.at) == (False, "25%", EXCHANGED)


def test_costs_and_shares_are_judged() -> None:
    found = measurement(
        pipelined=[pipelined(0.04, 0.046)],
        overhead=[Overhead(what="plan", chunks=10, chunk_us=21.0, timestamp=NOW)],
        traced=[traced(1.005, 1.1)],
        jobs=[two_jobs()],
        pushes=[pushes()],
    )
    assert judged(found) == {
        "pipelined units, of the bound": False,
        "scheduling a chunk": False,
        "step with a trace": None,
        "staggered, of alone": False,
        "fewer sent again, in slots": True,
        "smaller backlog, in slots": False,
        "round, in slots": True,
    }


@pytest.mark.parametrize(
    ("rows", "met"),
    [
        # Units can gain something only where their bound is large enough.
        ({"pipelined": [pipelined(0.04, 0.044)]}, True),
        ({"pipelined": [pipelined(0.1, 0.1)]}, None),
        # A trace proves something where steps differ by less than is asked.
        ({"traced": [traced(1.0, 1.01)]}, True),
        ({"traced": [traced(1.0, 1.02)]}, None),
        ({"traced": [traced(1.02, 1.03)]}, False),
        # Turns help where jobs disturb each other.
        ({"jobs": [two_jobs(unstaggered=(1.0, 1.5), staggered=(1.0, 1.0))]}, True),
        ({"jobs": [two_jobs(unstaggered=(1.0, 1.02), staggered=(1.0, 1.0))]}, None),
        ({"jobs": [two_jobs(unstaggered=(1.0, 1.02), staggered=(1.0, 1.2))]}, False),
    ],
)
def test_what_can_show_nothing_is_not_judged(rows: dict[str, Any], met: bool | None) -> None:
    assert list(judged(measurement(**rows)).values()) == [met]


def test_what_there_is_not_is_refused() -> None:
    for given in ({"parts": ["steps", "dance"]}, {"compressors": ["topk"]}, {"ratios": [0.0]}):
        with pytest.raises(ConfigError):
            Settings(**given)


def test_what_is_exchanged_alone_is_always_measured_and_ddp_where_it_can_compress() -> None:
    assert [m.name for m in Settings(pattern="none of all").methods("none")] == [EXCHANGED]
    assert not any(m.kind == "ddp" for m in Settings().methods("int8"))
    assert {m.name for m in Settings().methods("none")} == set(METHODS)


class _Ranks:
    """Ranks whose samples cost more the more there are, on a wire that takes a while."""

    folder = Path()

    def __init__(self, communication_s: float, sample_s: float) -> None:
        self.communication_s, self.sample_s = communication_s, sample_s
        self.batch = 0

    def ask(self, what: str, **given: Any) -> dict[str, float]:
        self.batch = given.get("batch", self.batch)
        step_s = self.sample_s * self.batch * (1 + self.batch / 50_000) + 0.01
        if what == "communicate":
            step_s = self.communication_s
        return {"step_s": step_s, "forward_s": step_s / 3}


def steps_of(ranks: _Ranks) -> Steps:
    settings = Settings(pattern="none of all", budget_s=0.0, least_rounds=1)
    asked: Any = ranks
    steps = Steps(asked, "3mbit", settings, "int8")
    assert list(steps.prepare()) == ["3mbit: setting up"]
    return steps


def measured(steps: Steps, ratio: float) -> Case:
    doing = steps.case(ratio)
    while True:
        try:
            next(doing)
        except StopIteration as end:
            found: Case = end.value[0]
            return found


@pytest.mark.parametrize("ratio", [0.5, 1.0, 2.0])
def test_batches_are_so_large_that_computing_takes_as_long_as_is_asked_for(ratio: float) -> None:
    found = measured(steps_of(_Ranks(3.0, 1e-4)), ratio)
    assert found.communication_s / (found.forward_s + found.backward_s) == pytest.approx(
        ratio, rel=0.04
    )


def test_batches_that_are_too_large_to_be_kept_are_refused() -> None:
    with pytest.raises(ConfigError, match="faster --link"):
        measured(steps_of(_Ranks(3.0, 1e-6)), 1.0)


def test_links_are_faster_where_communication_is_a_part_of_computing() -> None:
    settings = Settings(ratios=(0.5, 1.0, 2.0))
    assert settings.ratios_on("int8") == {"6mbit": [0.5], "3mbit": [1.0, 2.0]}
    assert Settings(link="1gbit", ratios=(0.5, 2.0)).ratios_on("none") == {"1gbit": [0.5, 2.0]}


def test_each_policy_and_each_chunk_that_leaves_have_a_cost() -> None:
    costs = dict(chunk_costs(repeats=1))
    planned = {f"plan by {name}" for name in POLICIES}
    assert set(costs) == planned | {"choose, cut and hand over"}
    assert all(seconds > 0 for seconds in costs.values())


def job_steps(*times_s: float) -> JobSteps:
    return JobSteps(times_s, tuple(seconds / 2 for seconds in times_s))


def test_a_jobs_usual_step_leaves_out_those_in_which_it_settled() -> None:
    assert job_steps(9.0, 9.0, *[1.0] * 8).usual_s == pytest.approx(1.0)


def test_slowdowns_are_multiples_of_each_jobs_own_step_alone() -> None:
    alone, slow = job_steps(*[1.0] * 10), job_steps(*[2.0] * 10)
    uneven = job_steps(*[9.0] * 2, *[1.0] * 5, *[2.0] * 3)
    found = [
        of_alone(of, (uneven, slow), (alone, slow))
        for of in (statistics.fmean, statistics.median, max)
    ]
    assert found == [(1.375, 1.0), (1.0, 1.0), (2.0, 1.0)]
    assert of_alone(statistics.fmean, (alone, alone), (alone, slow)) == (1.0, 0.5)


def test_the_share_of_communication_is_that_of_the_whole_time() -> None:
    assert JobSteps((1.0, 3.0), (0.5, 0.5)).communication == pytest.approx(0.25)


def test_in_slots_nothing_sent_again_counts_as_once() -> None:
    found = pushes(retransmitted=(200, 0), peak_bytes=(300_000, 50_000))
    assert found.fewer_retransmitted == 200
    assert found.smaller_peak == pytest.approx(6.0)
    assert found.slowdown == pytest.approx(1.01)


def test_jittered_steps_compute_about_as_long_as_asked_and_alike_on_all_ranks() -> None:
    first, second = (list(waits_s(2.0, 400, 0.1, seed)) for seed in range(2))
    assert first == list(waits_s(2.0, 400, 0.1, 0)) != second
    assert list(waits_s(0.5, 4, 0.0, 1)) == [0.5] * 4
    assert len(first) == 400
    assert 1.8 <= min(first) < 1.82 < 2.18 < max(first) <= 2.2
    assert sum(first) / 400 == pytest.approx(2.0, rel=0.02)
