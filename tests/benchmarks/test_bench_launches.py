"""What launches cost, as far as that can be tested without a GPU."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from compressa.kernels import KernelUnavailable
from test_bench_records import row
from typer.testing import CliRunner

from benchmarks.__main__ import app
from benchmarks.kernels import Bench, Measurement, Row, command, launches, tables
from benchmarks.kernels.device import CPU, BenchDevice, EventWatch, device_s
from benchmarks.kernels.launches import LAUNCHES, UNITS, LaunchCase, host_times
from benchmarks.kernels.operands import Operands
from compressa.codecs import Draw
from compressa.errors import ConfigError

UNIT = 1000
BY_NAME = {case.name: case for case in LAUNCHES}
DRAW = Draw(0, 0, 0, 0, 0)


class Gpu:
    """A GPU that works off what was enqueued while the host goes on.

    Attributes:
        host_us: What Python takes for a call.
        device_us: What the GPU takes for a call.
    """

    def __init__(self, host_us: float, device_us: float) -> None:
        self.host_us, self.device_us = host_us, device_us
        self.now_us = self.free_us = 0.0
        gpu = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                self.at_us = max(gpu.now_us, gpu.free_us)

            def query(self) -> bool:
                return self.at_us <= gpu.now_us

            def synchronize(self) -> None:
                gpu.now_us = max(gpu.now_us, self.at_us)

            def elapsed_time(self, end: Event) -> float:
                return (end.at_us - self.at_us) / 1e3

        self.event = Event

    def enqueue(self, host_us: float, device_us: float) -> None:
        self.now_us += host_us
        self.free_us = max(self.now_us, self.free_us) + device_us

    def synchronize(self) -> None:
        self.now_us = max(self.now_us, self.free_us)

    def call(self) -> None:
        self.enqueue(self.host_us, self.device_us)

    def copy(self) -> None:
        self.enqueue(5.0, 200.0)


@pytest.mark.parametrize(("host_us", "device_us"), [(12.0, 4.0), (100.0, 1.0), (1.0, 50.0)])
def test_the_time_of_the_gpu_has_none_of_the_host_in_it(
    host_us: float, device_us: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = Gpu(host_us, device_us)
    monkeypatch.setattr(torch.cuda, "Event", gpu.event)
    assert device_s(gpu.call, 20, gpu.copy) == pytest.approx(1e-6 * device_us)
    gpu.synchronize()
    either_us = max(host_us, device_us)  # unless the GPU has other work before
    assert EventWatch().sample(gpu.call, 20) == pytest.approx(1e-6 * either_us, rel=0.1)


def test_a_call_that_waits_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu(1.0, 1.0)
    monkeypatch.setattr(torch.cuda, "Event", gpu.event)

    def call() -> None:
        gpu.call()
        gpu.synchronize()

    with pytest.raises(RuntimeError, match="waits for the GPU"):
        device_s(call, 20, gpu.copy)


def test_the_time_of_the_host_is_that_of_each_call_by_itself() -> None:
    now = iter(range(10**6))
    did: list[str] = []
    samples = host_times(
        lambda: did.append("call"), lambda: did.append("wait"), clock=lambda: next(now)
    )
    assert set(samples.values) == {1}
    assert did.count("call") == len(samples.values) + 20
    assert [i for i, what in enumerate(did) if what == "wait"] == [20, len(did) - 1]


@pytest.mark.parametrize("case", [c for c in LAUNCHES if c.least_rate], ids=lambda c: c.name)
def test_a_list_gives_what_its_units_give_one_by_one(case: LaunchCase) -> None:
    operands, codec = Operands(UNITS * UNIT), case.codec
    call = case.prepare(codec, operands)
    call(), call()
    size = codec.wire_bytes(UNIT)
    found = operands.payload(UNITS * size).clone()
    residual, payload = torch.zeros(UNITS * UNIT), torch.zeros(size, dtype=torch.uint8)
    for unit in range(UNITS):
        part = slice(unit * UNIT, (unit + 1) * UNIT)
        for _ in range(2):
            codec.encode_feedback(operands.gradient[part], residual[part], payload, DRAW)
        assert torch.equal(found[unit * size : (unit + 1) * size], payload)
    assert torch.equal(operands.residual, residual)


def test_a_bucket_there_and_back_is_the_bucket() -> None:
    case = BY_NAME["int8 with residual, a bucket of 100 MB and back"]
    operands = Operands(10_000)
    case.prepare(case.codec, operands)()
    torch.testing.assert_close(2 * operands.out + operands.residual, operands.gradient)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> BenchDevice:
    """A device whose calls take one microsecond, or two."""
    now = count()
    monkeypatch.setattr(launches, "device_s", lambda call, loops, other: 1e-6 * (1 + next(now) % 2))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return replace(CPU, default_elems=(UNITS * UNIT,))


def smaller(case: LaunchCase) -> LaunchCase:
    return LaunchCase(**{**vars(case), "elems": UNITS * UNIT})


def test_every_case_gives_a_row(small: BenchDevice) -> None:
    bench = Bench(threads=1, repeats=7, device=small)
    rows = list(launches.run(bench, [smaller(case) for case in LAUNCHES]))
    assert rows == bench.rows
    assert [found.name for found in rows] == [case.name for case in LAUNCHES]
    assert {(found.benchmark, found.unit) for found in rows} == {("kernels-launch", "us")}
    beside = {found.name: found.peer for found in rows if found.peer}
    assert beside == {
        case.name: f"{UNITS * UNIT:,} elements" for case in LAUNCHES if case.least_rate
    }
    cells = tables.launches(rows).lines
    assert [line[0] for line in cells] == [case.name for case in LAUNCHES]
    assert {line[-1] for line in cells} <= {"met", "missed"}
    assert list(launches.run(bench, [])) == []


def test_what_has_no_kernel_is_named(small: BenchDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    def prepare(*_: object) -> Any:
        raise KernelUnavailable("no kernel")

    case = LaunchCase(**{**vars(smaller(LAUNCHES[0])), "prepare": prepare})
    bench = Bench(threads=1, repeats=7, device=small)
    assert list(launches.run(bench, [case])) == []
    assert bench.unavailable == {case.name}


def test_the_command_line_shows_them_and_names_them(
    small: BenchDevice, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cases, few = command._matching("*one unit*", "cuda")
    assert cases == []
    assert [case.name for case in few] == [name for name in BY_NAME if "one unit" in name]
    assert command._matching("int8", "cuda")[1] == []
    assert command._matching("*", "cpu")[1] == []
    with pytest.raises(ConfigError, match=r"there are: bf16 cast,.* 100 MB and back"):
        command._matching("int9", "cuda")
    found = [], [smaller(case) for case in few]
    monkeypatch.setattr(command, "_matching", lambda pattern, kind: found)
    monkeypatch.setattr(command, "CPU", small)
    file = tmp_path / "launches.json"
    said = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["kernels", "--json", str(file)])
    assert said.exit_code == 0
    assert "int8 with residual, one unit: device" in said.stdout
    assert "at most 10" in said.stdout
    assert {row.benchmark for row in Measurement.read(file).rows} == {"kernels-launch"}


def launched(name: str, median: float, peer_median: float | None) -> Row:
    return row(
        benchmark="kernels-launch",
        case=f"{name} @ 1000",
        unit="us",
        median=median,
        p20=median,
        p80=median,
        limit_ratio=None,
        peer=None if peer_median is None else "100 elements",
        peer_median=peer_median,
    )


@pytest.mark.parametrize(
    ("name", "median", "peer_median", "said", "verdict"),
    [
        ("int8 with residual, one unit: host", 15.0, None, "at most 15", "met"),
        ("int8 with residual, one unit: host", 15.1, None, "at most 15", "missed"),
        (
            "int4 with residual, 64 units in one launch",
            80.0,
            40.0,
            "0.50 of 0.50 of the rate of 100 elements",
            "met",
        ),
        (
            "int4 with residual, 64 units in one launch",
            80.0,
            39.0,
            "0.49 of 0.50 of the rate of 100 elements",
            "missed",
        ),
    ],
)
def test_a_row_says_what_was_wanted_and_whether_it_was_reached(
    name: str, median: float, peer_median: float | None, said: str, verdict: str
) -> None:
    (cells,) = tables.launches([launched(name, median, peer_median), row()]).lines
    assert cells == (name, "1,000", f"{median:.1f} ({median:.1f} to {median:.1f})", said, verdict)
