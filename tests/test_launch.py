"""Roles from cluster specifications."""

from __future__ import annotations

import json
from typing import Any

import pytest

from compressa.config import load_config
from compressa.errors import ConfigError
from compressa.launch import role_of

CLUSTER = {"chief": ["a:1"], "worker": ["b:2", "c:3"], "ps": ["d:4", "e:5"], "evaluator": ["f:6"]}


@pytest.mark.parametrize(
    ("kind", "index", "rank"),
    [("chief", 0, 0), ("worker", 0, 1), ("worker", 1, 2), ("ps", 0, 3), ("ps", 1, 4)],
)
def test_who_trains_comes_first_and_servers_last(kind: str, index: int, rank: int) -> None:
    role = role_of(json.dumps({"cluster": CLUSTER, "task": {"type": kind, "index": index}}), {})
    assert (role.rank, role.size, role.servers, role.address) == (rank, 5, 2, "a:1")
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
