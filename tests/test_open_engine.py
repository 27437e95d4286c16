"""compressa.open_engine: any named tensors, with all that gradients have."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from _ranks import Group, same, settings

import compressa

pytestmark = pytest.mark.ranks


@pytest.mark.parametrize("size", [1, 2, 4])
def test_tensors_become_the_mean_over_all_ranks(size: int, fresh: Callable[[int], Group]) -> None:
    job = "_rank_jobs_engine.average_exactly"
    for result in fresh(size).run(job, config=settings("none"), steps=3):
        assert result["error"] < 1e-6
        assert result["steps"] == 3
        assert (result["sent"] > 0) == (size > 1)
        assert result["left"] == []


@pytest.mark.parametrize("compressor", ["int8", "topk", "powersgd"])
def test_a_resumed_run_repeats_its_bits_on_all_ranks(
    compressor: str, two: Group, tmp_path: Path
) -> None:
    job = "_rank_jobs_engine.average_and_resume"
    results = two.run(job, config=settings(compressor), folder=str(tmp_path))
    whole, parts = same(results)
    assert whole == parts


def test_survivors_go_on_with_the_same_engine(fresh: Callable[[int], Group]) -> None:
    times = {"heartbeat_s": 0.3, "silence_s": 3.0, "deadline_s": 10.0}
    config = settings("topk", exchange=times, engine={"recover": True})
    group = fresh(3)
    started = group.start("_rank_jobs_engine.go_on_without", config=config, culprit=1)
    outcomes = group.collect(started, 60.0)
    assert outcomes[1].exit_code == -signal.SIGKILL
    for outcome in (outcomes[0], outcomes[2]):
        assert outcome.ok, outcome.explain()
        assert outcome.value["lost"] == [1]
        assert outcome.value["size"] == 2
        assert outcome.value["owed"]
    same([outcomes[rank].value["digest"] for rank in (0, 2)])


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("shape", "parameters.long.shape"),
        ("name", "parameters.long"),
        ("configuration", "configuration.compressor"),
        ("sparse", "'long' has the layout torch.sparse_coo"),
        ("integers", "made of torch.int32 values"),
    ],
)
def test_what_ranks_can_not_average_is_refused_on_all(what: str, says: str, two: Group) -> None:
    for outcome in two.errors("_rank_jobs_engine.open_unlike", what=what):
        assert outcome.error is not None
        assert outcome.error["type"] == "ConfigError", outcome.explain()
        assert says in outcome.error["message"]


def test_an_error_of_the_caller_closes_the_engine(two: Group) -> None:
    for result in two.run("_rank_jobs_engine.leave_by_an_error", config=settings("int8")):
        assert result["left"] == []
        assert "closed" in result["says"]


def test_without_a_process_group_there_is_an_error() -> None:
    assert not dist.is_initialized()
    with pytest.raises(compressa.StateError, match=r"open_engine .*init_process_group"):
        compressa.open_engine({}, {"x": torch.zeros(3)})
