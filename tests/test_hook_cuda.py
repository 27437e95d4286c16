"""The hook with gradients on a GPU, as a CPU emulates one: the same bits, however late it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from _ranks import Group, same, settings

pytestmark = pytest.mark.ranks

ON_GPU = "_rank_jobs_cuda.on_gpu"


@pytest.mark.parametrize("transport", ["tcp", "gloo", "gloo-group", "nccl"])
@pytest.mark.parametrize("compressor", ["int8", "none", "topk"])
@pytest.mark.parametrize("seed", [None, 1])
def test_training_on_a_gpu_gives_the_bits_of_the_cpu(
    compressor: str, transport: str, seed: int | None, two: Group
) -> None:
    on_host = "tcp" if transport == "nccl" else transport
    config = settings(compressor, exchange={"transport": on_host})
    due = same([r["parameters"] for r in two.run("_rank_jobs.train", config=config, steps=4)])
    config = settings(compressor, exchange={"transport": transport})
    results = two.run(ON_GPU, job="_rank_jobs.train", config=config, steps=4, seed=seed)
    assert same([result["parameters"] for result in results]) == due


@pytest.mark.parametrize("transport", ["tcp", "nccl"])
@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_streams_that_are_ahead_of_others_overwrite_nothing(
    transport: str, seed: int | None, two: Group
) -> None:
    # The memory that one stage receives into is the next stage's, too.
    exchange = {"kind": "scatter_reduce"}
    config = settings("int8", exchange=exchange)
    due = same([r["parameters"] for r in two.run("_rank_jobs.train", config=config, steps=3)])
    config = settings("int8", exchange={**exchange, "transport": transport})
    results = two.run(ON_GPU, job="_rank_jobs.train", config=config, steps=3, seed=seed)
    assert same([result["parameters"] for result in results]) == due


@pytest.mark.parametrize("compressor", ["int8", "topk", "powersgd"])
def test_a_skipped_step_is_undone_on_a_gpu_as_on_a_cpu(compressor: str, two: Group) -> None:
    poison = {"rank": 1, "step": 2, "parameter": 0, "value": "inf"}
    config, job = settings(compressor), "_rank_jobs_mass.balance_with_scaler"
    due = two.run(job, config=config, steps=4, poison=poison)
    assert two.run(ON_GPU, job=job, config=config, steps=4, poison=poison) == due
    assert [h["moved"] for h in due[0]["history"]] == [True, True, False, True]


def test_unused_parameters_keep_their_residuals_on_a_gpu(two: Group) -> None:
    config, job = settings("int8"), "_rank_jobs_mass.hold_unused"
    assert two.run(ON_GPU, job=job, config=config) == two.run(job, config=config)


@pytest.mark.parametrize("compressor", ["topk", "powersgd"])
def test_a_gpu_and_a_cpu_read_each_other_s_checkpoints(
    compressor: str, two: Group, tmp_path: Path
) -> None:
    config = settings(compressor, warmup={"steps": 2})
    jobs = {"cpu": "_rank_jobs_state.save", "gpu": "_rank_jobs_state.load"}
    for saved, loaded in (("cpu", "gpu"), ("gpu", "cpu")):
        due = run_on(two, saved, jobs["cpu"], config=config, folder=str(tmp_path / saved))
        assert run_on(two, loaded, jobs["gpu"], config=config, folder=str(tmp_path / saved)) == due


def test_compressors_are_switched_on_a_gpu_as_on_a_cpu(two: Group, tmp_path: Path) -> None:
    switches = [(1, {"compressor": "int8"}, 3), (3, {"compressor": "none"}, None)]
    job, config = "_rank_jobs_switch.switching", settings("topk")
    results = [
        run_on(two, place, job, config=config, switches=switches, steps=7, folder=str(tmp_path))
        for place in ("cpu", "gpu")
    ]
    assert results[0] == results[1]


@pytest.mark.parametrize("transport", ["tcp", "gloo"])
def test_a_killed_rank_is_named_and_nothing_is_left_behind(
    transport: str, fresh: Callable[[int], Group]
) -> None:
    group, job = fresh(2), "_rank_jobs_faults.train_until_failure"
    times = {"heartbeat_s": 0.3, "silence_s": 2.0, "deadline_s": 20.0}
    config = settings("int8", exchange={"transport": transport, **times})
    fault = {"culprit": 1, "how": "kill", "phase": "backward", "close": True}
    outcomes = group.collect(group.start(ON_GPU, job=job, config=config, **fault), 20.0)
    assert outcomes[0].ok, outcomes[0].explain()
    seen = outcomes[0].value
    assert (seen["type"], seen["rank"], seen["left"]) == ("PeerLost", 1, [])
    assert seen["seconds"] < 8.0


def run_on(group: Group, place: str, job: str, **options: Any) -> Any:
    """Do a job with gradients on the CPU, or on an emulated GPU."""
    if place == "cpu":
        return group.run(job, **options)
    return group.run(ON_GPU, job=job, **options)
