from __future__ import annotations

import os
import signal
import sys
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from _between_hosts import warm_ranks
from rich.console import Console

from compressa.testbed import Testbed, open_testbed
from harness.ranks import RankError
from harness.start import started_ranks

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments"))

from lab.compressors import stretches
from lab.derive import RESULTS_FILE, Row
from lab.driver import Driver, answers
from lab.plan import PLANS, Plan, jobs
from lab.progress import LiveProgress
from lab.records import CompressorSpec, FirstSteps, TimeRecord, TrainCell, TrainRecord, read
from lab.tasks import load_task
from lab.training import Stepper, build_model

SMOKE: dict[str, Any] = {
    "hosts": 2,
    "links": ["unshaped"],
    "time_steps": 2,
    "warmup_steps": 3,
    "ddp_bucket_caps_mb": [1, 25],
    "bucket_tuning_steps": 1,
    "compressors": ["ddp-float32", "torch-fp16", "lossless"],
    "configs": {"lossless": {"compressor": {"name": "none"}}},
    "tasks": [{"name": "digits", "train_steps": 4, "evaluations": 2}],
}
pytestmark = pytest.mark.usefixtures("warm_ranks")
__all__ = ["warm_ranks"]
open_loopback = partial(open_testbed, link="unshaped", kind="loopback", self_check=False)


@pytest.mark.ranks
def test_a_small_plan_runs_end_to_end(tmp_path: Path) -> None:
    said = StringIO()
    with LiveProgress(Console(file=said)) as progress:
        driver = Driver(Plan.model_validate(SMOKE), tmp_path, progress)
        driver.run(open_loopback)
    assert driver.failures == []
    assert "6/6" in said.getvalue()
    cells = read(tmp_path)
    trains = {cell.compressor: cell for cell in cells if isinstance(cell, TrainRecord)}
    assert [point.step for point in trains["ddp-float32"].curve] == [2, 4]
    # Two ranks sum in one order only, so a lossless hook trains the same bits as plain DDP.
    assert trains["lossless"].parameters_sha256 == trains["ddp-float32"].parameters_sha256
    assert trains["torch-fp16"].parameters_sha256 != trains["ddp-float32"].parameters_sha256
    times = {cell.compressor: cell for cell in cells if isinstance(cell, TimeRecord)}
    assert set(times["ddp-float32"].bucket_caps_tried_step_s) == {"1", "25"}
    assert times["ddp-float32"].bytes_accounted == 85_066 * 4
    assert times["lossless"].bytes_accounted == pytest.approx(85_066 * 4, rel=0.03)
    lines = (tmp_path / RESULTS_FILE).read_text().splitlines()
    rows = [Row.model_validate_json(line) for line in lines]
    assert {row.compressor for row in rows} == set(times)
    assert all(row.replicas_identical and row.speedup_over_ddp_float32 for row in rows)


@pytest.mark.ranks
def test_ranks_that_meet_seldom_end_with_the_same_bits(tmp_path: Path) -> None:
    strategy = {"strategy": {"name": "diloco", "every": 3}}
    plan = SMOKE | {"compressors": ["apart"], "configs": {"apart": strategy}, "links": []}
    with LiveProgress(Console(file=StringIO())) as progress:
        driver = Driver(Plan.model_validate(plan), tmp_path, progress)
        driver.run(open_loopback)
    assert driver.failures == []
    (cell,) = read(tmp_path)
    assert isinstance(cell, TrainRecord)
    assert cell.replicas_identical
    assert cell.final is not None


@pytest.mark.ranks
def test_first_steps_are_those_of_their_own_configuration(tmp_path: Path) -> None:
    """Then come two steps of an outer optimizer that hardly moves."""
    outer = {"every": 1, "outer_momentum": 0.0, "outer_rate": 1e-6, "nesterov": False}
    still = {"strategy": {"name": "diloco", **outer}}
    first = {"first": {"steps": 2, "config": {"compressor": {"name": "none"}}}}
    configs = {"lossless": {"compressor": {"name": "none"}}, "still": still | first}
    plan = SMOKE | {"compressors": ["lossless", "still"], "configs": configs, "links": []}
    with LiveProgress(Console(file=StringIO())) as progress:
        driver = Driver(Plan.model_validate(plan), tmp_path, progress)
        driver.run(open_loopback)
    assert driver.failures == []
    cells = {cell.compressor: cell for cell in read(tmp_path) if isinstance(cell, TrainRecord)}
    every, begun = cells["lossless"].curve, cells["still"].curve
    assert [point.step for point in begun] == [2, 4]
    assert begun[0].value == every[0].value
    assert begun[1].value == pytest.approx(begun[0].value, abs=1e-3) != every[1].value


def test_first_steps_that_are_all_steps_are_refused() -> None:
    spec = CompressorSpec(name="late", config={}, first=FirstSteps(steps=4, config={}))
    with pytest.raises(ValueError, match="late: the first 4 of 4 steps are all"):
        stretches(spec, 4)


def test_first_steps_may_have_an_optimizer_of_their_own() -> None:
    """Then come others by another one, whose rate is that of their step."""
    demo, adamw = {"name": "DeMo", "lr": 2e-3}, {"name": "AdamW", "lr": 1e-3}
    first = FirstSteps(steps=4, config={"compressor": "demo"}, optimizer=demo)
    spec = CompressorSpec(name="apart", config={}, optimizer=adamw, first=first)
    (begun, before), (later, after) = stretches(spec, 10)
    assert (begun, before.optimizer, before.config) == (range(4), demo, first.config)
    assert (later, after.optimizer, after.config) == (range(4, 10), adamw, {})
    cell = TrainCell(task="digits", compressor=spec, seed=0, steps=10, eval_every=5)
    task, model = load_task("digits"), build_model(cell)
    stepper, whole = Stepper(cell, task, model), task.optimizer(model, 10)[1].lr_lambdas[0]
    mine = torch.optim.AdamW(model.parameters(), lr=1e-3)
    stepper.follow(mine, 4)
    assert mine.param_groups[0]["lr"] == pytest.approx(1e-3 * whole(4))
    mine.step()
    stepper.schedule.step()
    assert mine.param_groups[0]["lr"] == pytest.approx(1e-3 * whole(5))


@pytest.mark.ranks
def test_a_killed_rank_ends_the_cell_and_is_named() -> None:
    cell = TrainCell(
        task="digits",
        compressor=CompressorSpec(name="ddp-float32"),
        seed=0,
        steps=100_000,
        eval_every=100_000,
    )

    def run(bed: Testbed) -> None:
        with started_ranks(bed, "lab.cells:Cells") as ranks:
            victim = ranks._started[1].process.pid
            answers(ranks, cell, 60.0, lambda _: os.kill(victim, signal.SIGKILL), lambda _: None)

    with open_loopback(2) as bed, pytest.raises(RankError, match=r"rank 1 ended with status -9"):
        run(bed)


def test_a_plan_is_the_product_of_its_lists() -> None:
    plan = Plan.model_validate(
        SMOKE
        | {
            "seeds": [0, 1],
            "links": ["100mbit", "1 Gbit/s + 5 ms"],
            "end_to_end": [{"task": "digits", "compressor": "lossless", "link": "100mbit"}],
        }
    )
    found = jobs(plan)
    assert sum(job.cell.kind == "train" and job.link is None for job in found) == 3 * 2
    timed = [job.link for job in found if job.cell.kind == "time"]
    assert timed == ["100mbit"] * 3 + ["1gbit+5ms"] * 3
    assert (found[-1].cell.kind, found[-1].link) == ("train", "100mbit")


def test_a_task_may_have_seeds_of_its_own() -> None:
    tasks = [SMOKE["tasks"][0] | {"seeds": [3, 4, 5]}]
    found = jobs(Plan.model_validate(SMOKE | {"tasks": tasks, "seeds": [0, 1]}))
    assert {job.cell.seed for job in found if job.cell.kind == "train"} == {3, 4, 5}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"compressors": ["int9"]}, "no compressor is called 'int9'.*lossless"),
        ({"links": ["fast"]}, '"fast" is not a link'),
        ({"hots": 3}, "hots"),
        ({"end_to_end": [{"task": "mlp", "compressor": "lossless", "link": "1gbit"}]}, "'mlp'"),
    ],
    ids=["compressor", "link", "key", "task"],
)
def test_a_wrong_plan_is_refused_before_anything_starts(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Plan.model_validate(SMOKE | change)


@pytest.mark.ranks
def test_a_plan_may_name_an_optimizer(tmp_path: Path) -> None:
    plan = SMOKE | {
        "compressors": ["adamw", "onebit-adam"],
        "configs": {
            "adamw": {"optimizer": {"name": "AdamW", "lr": 0.002}},
            "onebit-adam": {"optimizer": {"name": "OneBitAdam", "lr": 0.002, "warmup_steps": 9}},
        },
    }
    with LiveProgress(Console(file=StringIO())) as progress:
        driver = Driver(Plan.model_validate(plan), tmp_path, progress)
        driver.run(open_loopback)
    assert driver.failures == []
    cells = read(tmp_path)
    dense, onebit = (cell for cell in cells if isinstance(cell, TrainRecord))
    assert onebit.dense_warmup_steps == 9  # so that it is AdamW in all of these steps
    assert onebit.metrics["loss"] == pytest.approx(dense.metrics["loss"], rel=1e-4)
    sent = {c.compressor: c.bytes_accounted for c in cells if isinstance(c, TimeRecord)}
    assert sent["adamw"] > 15 * sent["onebit-adam"]


@pytest.mark.parametrize("path", sorted(PLANS.glob("*.toml")), ids=lambda path: path.stem)
def test_the_plans_that_ship_are_valid(path: Path) -> None:
    assert jobs(Plan.load(path))
