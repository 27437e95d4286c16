"""What a command shows of a measurement: tables and verdicts of each of its parts."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from test_bench_exchange import at_line_rate
from test_bench_exchange import whole as whole_exchange
from test_bench_records import row, whole
from test_bench_schedule import (
    NOW,
    case,
    measurement,
    pipelined,
    pushes,
    step,
    traced,
    two_jobs,
)

from benchmarks.exchange.records import Omitted
from benchmarks.exchange.tables import shown as exchange_shown
from benchmarks.kernels.tables import shown as kernels_shown
from benchmarks.schedule.plan import AUTO, DDP
from benchmarks.schedule.records import Overhead
from benchmarks.schedule.tables import shown as schedule_shown
from harness.records import Measurement
from harness.runner import Shown, as_page


def quoted(folder: Path, measured: Measurement, shown: Callable[[Any], Shown]) -> str:
    """What is shown of a measurement that was written and read, and of its machine and versions."""
    measured.write(folder / "rows.json")
    read = type(measured).read(folder / "rows.json")
    assert f" on {measured.header.machine}; " in read.when_and_where
    for library, text in measured.header.versions.items():
        assert f"{library} {text}" in read.when_and_where
    return "\n".join([f"{read.when_and_where}\n", *as_page(shown(read))])


def scheduled(folder: Path, **rows: Any) -> str:
    return quoted(folder, measurement(**rows), schedule_shown)


def test_kernels_are_quoted_with_their_yardstick_and_targets(tmp_path: Path) -> None:
    growth = row(benchmark="kernels-scaling", unit="us", peer=None, peer_median=None)
    fixed = row(benchmark="kernels-fixed-cost", unit="us", peer=None, peer_median=None)
    bandwidth = {"metric": "bandwidth", "unit": "GB/s", "median": 44.0, "p20": 40.0, "p80": 45.0}
    yardstick = row(case="in-place update @ 25000000", peer=None, peer_median=None, **bandwidth)
    measured = whole().model_copy(update={"rows": [yardstick, row(), growth, fixed]})
    block = quoted(tmp_path, measured, kernels_shown)
    assert "Measured 2026-01-02 on" in block
    assert "L2 1 MiB, " in block
    assert "| 25,000,000 | 2 | 44.0 | 40.0 | 45.0 |" in block
    times = "10.00 (9.50 to 11.00) | 0.80 of 0.85 | torch operations | 50.00 | 5.00 | missed |"
    assert f"| int8 with residual | 25,000,000 | {times}" in block
    assert "| int8 with residual | 10.0 | met |" in block


def test_exchanges_are_quoted_with_their_network_and_what_was_left_out(tmp_path: Path) -> None:
    left_out = {"hosts": 8, "link": "1gbit", "method": "ring", "size_bytes": 1 << 20}
    measured = whole_exchange(at_line_rate("ring", 0.96)).model_copy(
        update={"omitted": [Omitted(**left_out, why="12 s for one operation")]}
    )
    block = quoted(tmp_path, measured, exchange_shown)
    assert "4 hosts, 1gbit: line rate 119.0 MB/s; a message 100 us" in block
    assert "| ring | 52.5 (0.96) |" in block
    assert "| all_reduce, of line rate | 4 | 1gbit | 0.96 | 0.95 | ring, 4 MB | met |" in block
    assert "too long for --longest: ring 1 MiB on 8 hosts at 1gbit." in block


def test_rows_of_several_days_are_said_to_be_so(tmp_path: Path) -> None:
    costs = [Overhead(what="plan", chunks=10, chunk_us=21.0, timestamp=NOW.replace(day=3))]
    block = scheduled(tmp_path, cases=[case()], overhead=costs)
    assert "Measured 2026-05-01 to 2026-05-03 on " in block


def test_steps_stand_beside_ideal_ddp_and_simulation(tmp_path: Path) -> None:
    ours = step(AUTO, 0.31, simulated_s=0.3).model_copy(update={"p20_s": 0.3, "p80_s": 0.325})
    steps = [step(DDP[0].name, 0.62), step(DDP[1].name, 0.7), ours]
    block = scheduled(tmp_path, cases=[case(), case("int8")], steps=steps)
    assert (
        "none, C = 1 (F + B), 200mbit, batches of 100: F 100 ms, B 200 ms, C 310 ms, that is "
        "1.03 (F + B); ideal 310 ms; 3 rounds.\n\n| method |" in block
    )
    assert f"| {DDP[0].name} | 620 | 620 to 620 | 2.00 | 1.00 | - | - |" in block
    assert f"| {DDP[1].name} | 700 | 700 to 700 | 2.26 | 0.89 | - | - |" in block
    assert f"| {AUTO} | 310 | 300 to 325 | 1.00 | 2.00 | 300 | -3% |" in block
    assert "int8, C = 1" not in block, "there are no steps of it"


def test_every_other_part_of_schedules_has_a_table_and_a_verdict(tmp_path: Path) -> None:
    jobs = two_jobs(
        unstaggered=(1.4, 1.5),
        staggered=(1.0, 1.02),
        medians=((1.41, 1.51), (0.99, 1.01)),
        worsts=((2.0, 2.1), (1.1, 1.2)),
        burstiness=(2.2, 1.1, None),
    )
    server = pushes(
        link="100mbit",
        size_bytes=1_000_000,
        round_s=(0.4, 0.44),
        retransmitted=(1580, 5),
        peak_bytes=(312_346, 50_000),
        burstiness=(1.4, 1.25),
    )
    block = scheduled(
        tmp_path,
        pipelined=[pipelined(0.04, 0.05), pipelined(0.1, 0.1)],
        overhead=[Overhead(what="plan", chunks=10_000, chunk_us=2.034, timestamp=NOW)],
        traced=[traced(1.004, 1.02).model_copy(update={"step_s": 0.1234, "cpu_ratio": 1.015})],
        jobs=[jobs],
        pushes=[server],
    )
    for line in (
        "| int8, 32 | 500mbit | 10.0 | 40.0 | 10.0 | 70.0 | 50.0 | 1.20 | 1.50 |",
        "| plan | 10,000 | 2.03 |",
        "| 123 | 1.004 | 0.990 to 1.020 | 1.015 |",
        "| alone | 1.00 | - | - | 2.20 |",
        "| not staggered | 1.40, 1.50 | 1.41, 1.51 | 2.00, 2.10 | 1.10 |",
        "| staggered | 1.00, 1.02 | 0.99, 1.01 | 1.10, 1.20 | - |",
        "| at once | 400 | 1,580 | 312,346 | 1.40 |",
        "| in slots | 440 | 5 | 50,000 | 1.25 |",
        "Targets: 4 met, 2 missed, 2 not judged.",
        "| round, in slots | four workers, one server, 100mbit | 1.10 | <= 1.02 |  | missed |",
    ):
        assert f"{line}\n" in block
    for caption in (
        "for connections (fair), 2 MB of gradients a step",
        "which is 345 ms for the first.",
        "push 1 MB each",
    ):
        assert caption in block
    for table in re.findall(r"(?:^\|.*\n)+", block, re.M):
        assert len({line.count("|") for line in table.splitlines()}) == 1, table


def test_what_is_not_judged_is_explained_where_there_is_such_a_thing(tmp_path: Path) -> None:
    assert "Not judged is" not in scheduled(tmp_path, pipelined=[pipelined(0.04, 0.05)])
    assert "bound is below 1.30" in scheduled(tmp_path, pipelined=[pipelined(0.1, 0.1)])
