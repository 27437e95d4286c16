"""What the page of measurements says of schedules."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from test_bench_schedule import NOW, case, measurement, pipelined, step, two_jobs

from benchmarks import page as performance
from benchmarks.schedule.methods import AUTO, DDP
from benchmarks.schedule.records import Overhead, Pushes, Traced

ROOT = Path(__file__).resolve().parents[1]
HEADING = performance.SCHEDULE_HEADING


def section_of(folder: Path, **rows: Any) -> str:
    file = folder / "schedule.json"
    measurement(**rows).write(file)
    return performance.schedule_section(folder)


def test_it_has_the_figures_of_the_committed_measurement() -> None:
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    assert performance.up_to_date(page) == page, "run python -m benchmarks.page"


def test_a_measurement_takes_the_place_of_its_section_alone(tmp_path: Path) -> None:
    blocks = [f"<!-- {name}:begin --><!-- {name}:end -->" for name in ("kernels", "exchange")]
    before, after = "\n".join(blocks), "\n### What misses its target\n\nKept.\n"
    section = section_of(tmp_path, cases=[case()], steps=[step(AUTO, 0.31)])
    page = f"{before}\n\n{HEADING}\n\nNothing yet.\n"
    for rest in ("", after):
        found = performance.up_to_date(page + rest, tmp_path)
        assert found.endswith(f"\n{HEADING}\n\n{section}{rest}")
        assert performance.up_to_date(found, tmp_path) == found


@pytest.mark.parametrize("page", ["", "\n{0}\n\n{0}\n", "\n#{0}\n"])
def test_a_page_without_a_place_for_the_section_is_refused(page: str) -> None:
    with pytest.raises(ValueError, match="once"):
        performance.with_section(page.format(HEADING), HEADING, "")


def test_figures_come_with_machine_versions_dates_and_model(tmp_path: Path) -> None:
    later = NOW.replace(day=3)
    costs = [Overhead(what="plan", chunks=10, chunk_us=21.0, timestamp=later)]
    section = section_of(tmp_path, cases=[case()], overhead=costs)
    head = measurement().header
    assert f"Measured 2026-05-01 to 2026-05-03 on {head.cpu}, {head.cores} cores" in section
    for name, text in head.versions.items():
        assert f"{name} {text}" in section
    assert "20 layers (1,000 parameters)" in section
    assert "buckets of 1, 4 and 25 MB" in section


def test_steps_stand_beside_ideal_ddp_and_simulation(tmp_path: Path) -> None:
    ours = step(AUTO, 0.31, simulated_s=0.3).model_copy(update={"p20_s": 0.3, "p80_s": 0.325})
    steps = [step(DDP[0].name, 0.62), step(DDP[1].name, 0.7), ours]
    section = section_of(tmp_path, cases=[case(), case("int8")], steps=steps)
    assert (
        "none, C = 1 (F + B), 200mbit, batches of 100: F 100 ms, B 200 ms, C 310 ms, that is "
        "1.03 (F + B); ideal 310 ms; 3 rounds.\n\n| method |" in section
    )
    assert f"| {DDP[0].name} | 620 | 620 to 620 | 2.00 | 1.00 | - | - |" in section
    assert f"| {DDP[1].name} | 700 | 700 to 700 | 2.26 | 0.89 | - | - |" in section
    assert f"| {AUTO} | 310 | 300 to 325 | 1.00 | 2.00 | 300 | -3% |" in section
    assert "int8, C = 1" not in section, "there are no steps of it"


def test_every_other_part_has_a_table_and_a_verdict(tmp_path: Path) -> None:
    section = section_of(
        tmp_path,
        pipelined=[pipelined(0.04, 0.05), pipelined(0.1, 0.1)],
        overhead=[Overhead(what="plan", chunks=10_000, chunk_us=2.034, timestamp=NOW)],
        traced=[
            Traced(
                step_s=0.1234,
                ratio=1.004,
                ratio_low=0.99,
                ratio_high=1.02,
                cpu_ratio=1.015,
                timestamp=NOW,
            )
        ],
        jobs=[
            two_jobs(
                unstaggered=(1.4, 1.5),
                staggered=(1.0, 1.02),
                medians=((1.41, 1.51), (0.99, 1.01)),
                worsts=((2.0, 2.1), (1.1, 1.2)),
                burstiness=(2.2, 1.1, None),
            )
        ],
        pushes=[
            Pushes(
                link="100mbit",
                size_bytes=1_000_000,
                round_s=(0.4, 0.44),
                retransmitted=(1580, 5),
                peak_bytes=(312_346, 50_000),
                burstiness=(1.4, 1.25),
                timestamp=NOW,
            )
        ],
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
        assert f"{line}\n" in section
    for caption in (
        "for connections (fair), 2 MB of gradients a step",
        "which is 345 ms for the first.",
        "push 1 MB each",
    ):
        assert caption in section
    for table in re.findall(r"(?:^\|.*\n)+", section, re.M):
        assert len({line.count("|") for line in table.splitlines()}) == 1, table


def test_what_is_not_judged_is_explained_where_there_is_such_a_thing(tmp_path: Path) -> None:
    assert "Not judged is" not in section_of(tmp_path, pipelined=[pipelined(0.04, 0.05)])
    assert "bound is below 1.30" in section_of(tmp_path, pipelined=[pipelined(0.1, 0.1)])
