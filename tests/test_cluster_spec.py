"""Roles from cluster specifications, and processes that meet by them, or hear why not."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from _page_ranks import free_port
from _ranks import Group

from compressa.cluster_spec import init_from_tf_config, read
from compressa.config import load_config
from compressa.errors import CompressaError, ConfigError

CLUSTER = {"chief": ["a:1"], "worker": ["b:2", "c:3"], "ps": ["d:4", "e:5"], "evaluator": ["f:6"]}
MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    ("kind", "index", "rank"),
    [("chief", 0, 0), ("worker", 0, 1), ("worker", 1, 2), ("ps", 0, 3), ("ps", 1, 4)],
)
def test_who_trains_comes_first_and_servers_last(kind: str, index: int, rank: int) -> None:
    cluster = read(json.dumps({"cluster": CLUSTER, "task": {"type": kind, "index": index}}))
    assert cluster.own == rank
    role = cluster.role(rank)
    assert (role.rank, role.size, role.servers) == (rank, 5, 2)
    assert role.local_rank == 0  # all are on hosts of their own
    config = load_config({"strategy": role.strategy("bounded", staleness=3)})
    assert (
        config.strategy
        == load_config(
            {"strategy": {"name": "bounded", "staleness": 3, "servers": 2, "dedicated": True}}
        ).strategy
    )


def test_without_servers_all_who_train_keep_values() -> None:
    role = read(json.dumps({"cluster": {"worker": ["a:1", "b:1"]}})).role(1)
    assert role.strategy("async") == {"name": "async"}


@pytest.mark.parametrize(
    ("said", "environment", "told"),
    [
        ("no JSON", {}, "is no cluster specification"),
        ({"task": {"type": "worker", "index": 0}}, {}, "is no cluster specification"),
        ({"cluster": ["a:1"]}, MPI, "is no cluster specification"),
        ({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker"}}, {}, "no cluster spec"),
        ({"cluster": {"workers": ["a:1"]}}, MPI, "tasks of the kind 'workers'"),
        ({"cluster": {"ps": ["a:1"]}}, MPI, "has nobody who trains"),
        ({"cluster": {"worker": ["a"]}}, MPI, "give host:port"),
        ({"cluster": {"worker": ["grpc://a:1"]}}, MPI, "give host:port"),
        ({"cluster": {"worker": ["a:99999"]}}, MPI, "give host:port"),
        ({"cluster": {"worker": ["a:1"]}}, {}, "start it by torchrun, mpiexec or srun"),
        ({"cluster": {"worker": ["a:1"]}}, {"RANK": "0"}, "not WORLD_SIZE"),
        ({"cluster": {"worker": ["a:1"]}}, {"RANK": "x", "WORLD_SIZE": "1"}, "RANK = x"),
        ({"cluster": {"worker": ["a:1"]}}, MPI, r"2 processes, .* 1 tasks .*start as many"),
        ({"cluster": {"worker": ["a:1"] * 3}}, MPI, r"2 processes, .* 3 tasks .*start as many"),
        (
            {"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}},
            {},
            "none of its tasks: worker 0",
        ),
        (
            {"cluster": {"worker": ["a:1"]}, "task": {"type": "boss", "index": 0}},
            {},
            "this is boss 0, which is none of its tasks",
        ),
    ],
)
def test_what_is_no_specification_is_refused(
    said: Any, environment: dict[str, str], told: str
) -> None:
    text = said if isinstance(said, str) else json.dumps(said)
    with (
        mock.patch.dict(os.environ, environment, clear=True),
        pytest.raises(ConfigError, match=told),
    ):
        init_from_tf_config(text)


def test_a_missing_specification_is_named() -> None:
    with mock.patch.dict(os.environ, clear=True), pytest.raises(ConfigError, match="is not set"):
        init_from_tf_config()


def test_tasks_of_one_host_are_counted() -> None:
    cluster = read(json.dumps({"cluster": {"worker": ["a:1", "b:1", "a:2", "a:3"], "ps": ["b:2"]}}))
    assert [cluster.role(rank).local_rank for rank in range(5)] == [0, 0, 1, 2, 1]
    assert cluster.role(2, 7).local_rank == 7  # the launcher knows better


def begun(description: str) -> str:
    """Begin with a specification, under a torchrun whose ranks it does not go by."""
    if dist.is_initialized():
        dist.destroy_process_group()
    torchrun = {"RANK": "0", "WORLD_SIZE": "1", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    try:
        with mock.patch.dict(os.environ, torchrun):
            role = init_from_tf_config(description, timeout=timedelta(seconds=3))
        again = init_from_tf_config(description)  # takes the group that is there
    except CompressaError as error:
        return f"{type(error).__name__}: {error}"
    assert again == role
    count = torch.ones(1)
    dist.all_reduce(count)  # who leaves sooner would cut off those who are still being connected
    dist.destroy_process_group()
    return f"rank {role.rank} of {count.item():g}"


def described(port: int, tasks: Mapping[str, int], kind: str, index: int) -> dict[str, str]:
    cluster = {name: [f"127.0.0.1:{port}"] * count for name, count in tasks.items()}
    task = {"type": kind, "index": index}
    return {"description": json.dumps({"cluster": cluster, "task": task})}


@pytest.mark.ranks
def test_processes_that_do_not_fit_together_all_hear_why(fresh: Callable[[int], Group]) -> None:
    group = fresh(3)
    three, two = {"worker": 2, "ps": 1}, {"worker": 2}
    worker, other, server = ("worker", 0), ("worker", 1), ("ps", 0)

    def told(*tasks: tuple[str, int], second: Mapping[str, int] = three) -> list[str]:
        port = free_port()
        each = [described(port, c, *t) for c, t in zip((three, second, three), tasks, strict=True)]
        return group.run(begun, per_rank=each)

    assert told(worker, other, server) == [f"rank {rank} of 3" for rank in range(3)]

    *others, wrong = told(worker, other, ("ps", 3))
    assert wrong.startswith("ConfigError: TF_CONFIG says that this is ps 3, which is none of its")
    for said in others:
        assert said.startswith("Timeout: ps 0 did not come to worker 0's address 127.0.0.1:")
        assert said.endswith("within 3 s; start all tasks, with the same cluster")

    first, *same = told(worker, other, other)
    refusal = "ConfigError: another process is worker 1 as well; give each a task of its own"
    assert sorted(same) == [refusal, first]
    assert first.startswith("Timeout: ps 0 did not come to ")

    assert set(told(worker, other, server, second=two)) == {
        "ConfigError: not all have the cluster of worker 0, whose tasks are worker 0, worker 1, "
        "ps 0: worker 1 differs; give all the same cluster"
    }

    wrong, *others = told(("boss", 0), other, server)
    assert "this is boss 0, which is none of its tasks" in wrong
    for said in others:
        assert said.startswith("Timeout: ")
        assert said.endswith("start worker 0 there, with the same cluster")


@pytest.mark.ranks
def test_a_port_that_is_taken_is_named(fresh: Callable[[int], Group]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        told = described(taken.getsockname()[1], {"worker": 1}, "worker", 0)
        (said,) = fresh(1).run(begun, **told)
    assert said.startswith("TransportError: worker 0 can not listen at worker 0's address")
    assert said.endswith("give it a free port of this host")
