"""Starting ranks from what other frameworks' launchers say of them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from compressa.errors import ConfigError, StateError

_VARIABLE = "TF_CONFIG"
_WORKERS, _SERVERS = ("chief", "master", "worker"), ("ps",)
_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
_HELP = (
    'it is such as {"cluster": {"worker": ["a:4000", "b:4000"], "ps": ["c:4000"]}, "task": '
    '{"type": "worker", "index": 0}}'
)


@dataclass(frozen=True)
class Role:
    """What a process is in a cluster.

    Attributes:
        rank: Its rank: chief and workers come first, then servers.
        size: Number of ranks.
        servers: How many only keep values, which are the last ranks.
        address: "host:port" where rank 0 is met.
    """

    rank: int
    size: int
    servers: int
    address: str

    def strategy(self, name: str, **settings: Any) -> dict[str, Any]:
        """Return the section `[strategy]` of a strategy with servers for this cluster.

        Args:
            name: "async" or "bounded".
            settings: Further settings of it.
        """
        roles = {"servers": self.servers, "dedicated": True} if self.servers else {}
        return {"name": name, **roles, **settings}


def role_of(description: str, environment: Mapping[str, str]) -> Role:
    """Read a cluster specification.

    Args:
        description: JSON: "cluster", of lists of "host:port" by kind of task (chief, worker, ps),
            and "task", this process's type and index. An evaluator is none of the ranks. Without
            "task" a launcher must have set this process's rank (torchrun, mpiexec, srun, Ray).
        environment: Has what launchers set.

    Raises:
        ConfigError: It is none.
    """
    try:
        said = json.loads(description)
        cluster = {kind: list(map(str, tasks)) for kind, tasks in said["cluster"].items()}
        task = said.get("task")
        place = None if task is None else (str(task["type"]), int(task["index"]))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"{_VARIABLE} is no cluster specification ({error!r}); {_HELP}"
        ) from error
    unknown = cluster.keys() - {*_WORKERS, *_SERVERS, "evaluator"}
    tasks = [(k, i) for k in (*_WORKERS, *_SERVERS) for i in range(len(cluster.get(k, ())))]
    if unknown or not any(kind in _WORKERS for kind, _ in tasks):
        what = f"has tasks of the kind {min(unknown)!r}" if unknown else "has nobody who trains"
        raise ConfigError(f"{_VARIABLE} {what}; kinds are chief, worker, ps and evaluator; {_HELP}")
    address = cluster[tasks[0][0]][0]
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ConfigError(f"{_VARIABLE} has the address {address!r}; give host:port")
    rank = _launched(environment, len(tasks)) if place is None else None
    if place is not None:
        if place not in tasks:
            raise ConfigError(
                f"{_VARIABLE} says that this is {place[0]} {place[1]}, which is none of its tasks: "
                + ", ".join(f"{kind} {index}" for kind, index in tasks)
            )
        rank = tasks.index(place)
    assert rank is not None, "one of the two says it"
    servers = sum(kind in _SERVERS for kind, _ in tasks)
    return Role(rank, len(tasks), servers, address)


def init_from_tf_config(
    description: str | None = None, *, timeout: timedelta | None = None
) -> Role:
    """Initialise `torch.distributed`, over Gloo, by a cluster specification of TensorFlow.

    Args:
        description: As `role_of` takes it; the environment variable TF_CONFIG unless given.
        timeout: Longest wait for the others, as `init_process_group` takes it.

    Returns:
        What this process is. Hand `role.strategy("async")` to `compressa.attach`, as the section
        `strategy`, and call `strategy.serve()` where `strategy.serves`.

    Raises:
        ConfigError: There is no specification, or it is none.
        StateError: There is a process group already.

    Example:
        >>> role = compressa.init_from_tf_config()  # doctest: +SKIP
        >>> config = {"strategy": role.strategy("async")}  # doctest: +SKIP
    """
    if dist.is_initialized():
        raise StateError("compressa.init_from_tf_config: there is a process group already")
    if description is None:
        description = os.environ.get(_VARIABLE)
    if description is None:
        raise ConfigError(f"{_VARIABLE} is not set; {_HELP}")
    role = role_of(description, os.environ)
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://{role.address}",
        rank=role.rank,
        world_size=role.size,
        timeout=timeout,
    )
    return role


def _launched(environment: Mapping[str, str], size: int) -> int:
    for name in _RANKS:
        if name in environment:
            text = environment[name]
            if not text.isdecimal() or int(text) >= size:
                raise ConfigError(
                    f"{name} = {text}, and {_VARIABLE} has {size} tasks; start as many processes"
                )
            return int(text)
    raise ConfigError(
        f'{_VARIABLE} has no "task", and no launcher has set {", ".join(_RANKS)}; {_HELP}'
    )
