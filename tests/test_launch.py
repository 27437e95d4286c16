"""Roles from cluster specifications, and process groups of ranks that mpiexec or srun started."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from _ranks import Pools
from _ranks_mpi import missing, mpi_group

from compressa.config import load_config
from compressa.errors import ConfigError
from compressa.launch import init_from_mpi, role_of

CLUSTER = {"chief": ["a:1"], "worker": ["b:2", "c:3"], "ps": ["d:4", "e:5"], "evaluator": ["f:6"]}


@pytest.mark.parametrize(
    ("kind", "index", "rank"),
    [("chief", 0, 0), ("worker", 0, 1), ("worker", 1, 2), ("ps", 0, 3), ("ps", 1, 4)],
)
def test_who_trains_comes_first_and_servers_last(kind: str, index: int, rank: int) -> None:
    role = role_of(json.dumps({"cluster": CLUSTER, "task": {"type": kind, "index": index}}), {})
    assert (role.rank, role.size, role.servers, role.address) == (rank, 5, 2, "a:1")
    assert role.local_rank == 0  # all are on hosts of their own
    config = load_config({"strategy": role.strategy("bounded", staleness=3)})
    assert (
        config.strategy
        == load_config(
            {"strategy": {"name": "bounded", "staleness": 3, "servers": 2, "dedicated": True}}
        ).strategy
    )


def test_a_launcher_says_which_task_it_is() -> None:
    text = json.dumps({"cluster": CLUSTER})
    for name in ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"):
        assert role_of(text, {name: "4"}).rank == 4


def test_without_servers_all_who_train_keep_values() -> None:
    role = role_of(json.dumps({"cluster": {"worker": ["a:1", "b:1"]}}), {"RANK": "1"})
    assert role.strategy("async") == {"name": "async"}


@pytest.mark.parametrize(
    ("said", "environment", "told"),
    [
        ("no JSON", {}, "is no cluster specification"),
        ({"task": {"type": "worker", "index": 0}}, {}, "is no cluster specification"),
        ({"cluster": ["a:1"]}, {"RANK": "0"}, "is no cluster specification"),
        ({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker"}}, {}, "no cluster spec"),
        ({"cluster": {"workers": ["a:1"]}}, {"RANK": "0"}, "tasks of the kind 'workers'"),
        ({"cluster": {"ps": ["a:1"]}}, {"RANK": "0"}, "has nobody who trains"),
        ({"cluster": {"worker": ["a"]}}, {"RANK": "0"}, "give host:port"),
        ({"cluster": {"worker": ["grpc://a:1"]}}, {"RANK": "0"}, "give host:port"),
        ({"cluster": {"worker": ["a:99999"]}}, {"RANK": "0"}, "give host:port"),
        ({"cluster": {"worker": ["a:1"]}}, {}, "no launcher has set"),
        ({"cluster": {"worker": ["a:1"]}}, {"RANK": "abc"}, "RANK = abc"),
        ({"cluster": {"worker": ["a:1"]}}, {"RANK": "1"}, "start as many processes"),
        (
            {"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}},
            {},
            "none of its tasks: worker 0",
        ),
    ],
)
def test_what_is_no_specification_is_refused(
    said: Any, environment: dict[str, str], told: str
) -> None:
    text = said if isinstance(said, str) else json.dumps(said)
    with pytest.raises(ConfigError, match=told):
        role_of(text, environment)


def test_tasks_of_one_host_are_counted() -> None:
    text = json.dumps({"cluster": {"worker": ["a:1", "b:1", "a:2", "a:3"], "ps": ["b:2"]}})
    roles = [role_of(text, {"RANK": str(rank)}) for rank in range(5)]
    assert [role.local_rank for role in roles] == [0, 0, 1, 2, 1]


def met(environment: Mapping[str, str] | None = None) -> list[Any]:
    """Join by what a launcher has set; return the role, the rank in the group, and a sum."""
    with mock.patch.dict(os.environ, environment or {}):
        role = init_from_mpi(timeout=timedelta(seconds=20))
    total = torch.tensor([float(role.rank)])
    dist.all_reduce(total)
    found = [role.rank, role.size, role.local_rank, dist.get_rank(), total.item()]
    dist.destroy_process_group()
    return found


@pytest.mark.ranks
@pytest.mark.skipif(bool(missing()), reason=missing() or "all is here")
def test_ranks_of_mpiexec_meet_by_mpi_and_where_they_are_told() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free.getsockname()[1])}
    with mpi_group(2, meet=False) as group:
        for told in ({}, {"MASTER_ADDR": "localhost"}, place):
            found = group.run(met, environment=told)
            assert sorted(found) == [[0, 2, 0, 0, 1.0], [1, 2, 1, 1, 1.0]]
        assert group.leave_all(20.0) == 0


@pytest.mark.ranks
def test_ranks_of_srun_meet_on_the_first_host_of_its_list(pools: Pools) -> None:
    job = {"SLURM_NTASKS": "2", "SLURM_JOB_NODELIST": "localhost,other[1-3]"}
    job |= {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "0"}
    ranks = [{"SLURM_PROCID": str(rank), "SLURM_LOCALID": "0"} for rank in range(2)]
    group = pools.strangers(2)
    try:
        found = group.run(met, per_rank=[{"environment": job | own} for own in ranks])
    finally:
        group.end()
    assert found == [[0, 2, 0, 0, 1.0], [1, 2, 0, 1, 1.0]]


def test_without_mpi4py_the_place_must_be_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compressa.launch.find_spec", lambda name: None)
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"PMI_RANK": "0", "PMI_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="MASTER_ADDR and MASTER_PORT must say"):
        init_from_mpi()
    monkeypatch.setenv("MASTER_ADDR", "head")
    with pytest.raises(ConfigError, match=r"^MASTER_PORT must say"):
        init_from_mpi()
