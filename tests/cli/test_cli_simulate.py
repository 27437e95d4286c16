"""`compressa simulate` prints a row for each policy, and writes figures and traces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands import printed, refused
from compressa.schedulers import POLICIES
from simulated import profile
from test_link_file import favouring

from compressa.engine.start import link_file
from compressa.tracing.reader import read as read_trace


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    layers = [(20_000, 0.1 * (6 - i) / 6, 0.05 * i / 6) for i in range(6)]
    path, exchange = tmp_path / "profile.json", {"chunk_bytes": 10_000, "credit_bytes": 10_000}
    file = profile(layers, backward_s=0.1, forward_s=0.05, exchange=exchange)
    path.write_text(file.model_dump_json())
    return path


def test_it_shows_a_row_for_each_policy(
    measured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = tmp_path / "figures.json"
    about = ["simulate", "--profile", measured, "--hosts", 4, "--bandwidth", "20mbit"]
    shown = printed(capsys, *about, "--json", figures)
    assert shown.startswith("4 hosts, 19 Mbit/s of data each, latency 50 us; 120,000 parameters")
    rows = {line.split()[0]: line.split() for line in shown.splitlines() if line.split()}
    found = {one["policy"]: one for one in json.loads(figures.read_text())}
    assert [*found] == [*POLICIES]
    for policy, one in found.items():
        assert rows[policy][1] == f"{1e3 * one['step_s']:,.2f}"
        assert one["step_s"] >= one["ideal_s"] == max(one["compute_s"], one["wire_s"])
        assert len(one["units"]) == 6
    assert found["priority"]["step_s"] < found["fifo"]["step_s"]


def test_what_is_asked_for_is_simulated(
    measured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    about = ["simulate", "--profile", measured, "--bandwidth", "20mbit", "--policy", "priority"]
    shown = printed(capsys, *about, "--latency", "1.5ms", "--trace", tmp_path / "sim.json")
    assert "2 hosts" in shown
    assert "latency 1,500 us" in shown
    trace = read_trace(tmp_path / "sim-priority.json")
    assert (trace.rank, trace.size) == (0, 2)
    assert {span.stage for span in trace.spans} >= {"ready", "wire", "queued", "wait"}
    plain = printed(capsys, *about, "--no-overlap", "--compressor", "int8", "--jitter", 0.1)
    assert "waited for in the end of backward" in plain
    assert "int8" in plain
    assert "were not measured for this compression" in plain


def test_the_bandwidth_of_a_measured_link_need_not_be_given(
    measured: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    link = link_file.parse(json.dumps({**favouring("ring"), "byte_s": 1e-7}), "it")
    whole = json.loads(measured.read_text())
    measured.write_text(json.dumps({**whole, "link": link.model_dump(mode="json")}))
    shown = printed(capsys, "simulate", "--profile", measured, "--policy", "credit")
    assert shown.startswith("2 hosts, 80 Mbit/s of data each, latency 100 us")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--bandwidth", "fast"], "is not a link"),
        (["--bandwidth", "unshaped"], '--bandwidth: give a rate such as "10gbit"'),
        (["--latency", "soon"], "--latency: give a time"),
        (
            ["--bandwidth", "1gbit", "--policy", "best"],
            'schedule.policy: "best" is not allowed; must be one of "fifo", ',
        ),
        (["--bandwidth", "1gbit", "--compressor", "best"], "compressor"),
        (["--bandwidth", "1gbit", "--trace", "no/where/t.json"], "--trace: no/where"),
        (["--bandwidth", "1gbit", "--json", "no/where/t.json"], "--json: no/where"),
        ([], "how fast its network was"),
    ],
)
def test_what_can_not_be_simulated_is_refused(
    arguments: list[Any], message: str, measured: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refused(capsys, "simulate", "--profile", measured, *arguments)
