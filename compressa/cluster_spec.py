"""Cluster specifications of TensorFlow (TF_CONFIG): each process's role, and where all meet.

Who a process is says its "task", or without one its launcher, by the rank. Processes with a task
meet at the first task's address. There each writes down which tasks it knows of, and the first one
tells all whether somebody is missing, or knows of others.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from compressa.errors import ConfigError, Timeout, TransportError
from compressa.launch import MEET, Role, join
from compressa.launchers import Launched, launched

_VARIABLE = "TF_CONFIG"
_WORKERS, _SERVERS = ("chief", "master", "worker"), ("ps",)
_COUNTS, _KNOWN, _READERS = "compressa/counts", "compressa/known", "compressa/readers"
_VERDICT = "compressa/verdict"
_READ = timedelta(seconds=10)  # for a verdict that is there
_HELP = (
    'it is such as {"cluster": {"worker": ["a:4000", "b:4000"], "ps": ["c:4000"]}, "task": '
    '{"type": "worker", "index": 0}}'
)


@dataclass(frozen=True)
class Cluster:
    """A cluster specification.

    Attributes:
        tasks: Such as "worker 0", by rank: chief and workers come first, then servers.
        hosts: Of each task.
        port: Of the first one.
        own: The rank that "task" names; None without one.
    """

    tasks: tuple[str, ...]
    hosts: tuple[str, ...]
    port: int
    own: int | None

    @property
    def text(self) -> str:
        """All tasks."""
        return ", ".join(self.tasks)

    def role(self, rank: int, local_rank: int | None = None) -> Role:
        """Return what a process is.

        Args:
            rank: Its rank.
            local_rank: As its launcher says; counted by the tasks' hosts unless given.
        """
        if local_rank is None:
            local_rank = self.hosts[:rank].count(self.hosts[rank])
        servers = sum(task.split()[0] in _SERVERS for task in self.tasks)
        return Role(rank, len(self.tasks), servers, local_rank)

    def check_size(self, size: int, what: str) -> None:
        """Refuse another number of processes than of tasks.

        Args:
            size: Number of processes.
            what: Who has started so many, for the message.

        Raises:
            ConfigError: The numbers differ.
        """
        if size != len(self.tasks):
            raise ConfigError(
                f"{what} has {size} processes, and {_VARIABLE} has {len(self.tasks)} tasks "
                f"({self.text}); start as many processes, one for each task"
            )


def read(description: str) -> Cluster:
    """Read a cluster specification.

    Args:
        description: JSON: "cluster", of lists of "host:port" by kind of task (chief, worker, ps),
            and perhaps "task", this process's type and index. An evaluator is none of the ranks.

    Raises:
        ConfigError: It is none.
    """
    try:
        said = json.loads(description)
        cluster = {kind: list(map(str, tasks)) for kind, tasks in said["cluster"].items()}
        task = said.get("task")
        own_task = None if task is None else f"{task['type']} {int(task['index'])}"
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"{_VARIABLE} is no cluster specification ({error!r}); {_HELP}"
        ) from error
    unknown = cluster.keys() - {*_WORKERS, *_SERVERS, "evaluator"}
    if unknown or not any(cluster.get(kind) for kind in _WORKERS):
        what = f"has tasks of the kind {min(unknown)!r}" if unknown else "has nobody who trains"
        raise ConfigError(f"{_VARIABLE} {what}; kinds are chief, worker, ps and evaluator; {_HELP}")
    addresses = {
        f"{kind} {index}": address
        for kind in (*_WORKERS, *_SERVERS)
        for index, address in enumerate(cluster.get(kind, ()))
    }
    tasks = tuple(addresses)
    if own_task is not None and own_task not in tasks:
        raise ConfigError(
            f"{_VARIABLE} says that this is {own_task}, which is none of its tasks: "
            f"{', '.join(tasks)}; give one of them as type and index"
        )
    first = addresses[tasks[0]]
    host, _, port = first.rpartition(":")
    if not host or "/" in host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ConfigError(f"{_VARIABLE} has the address {first!r}; give host:port")
    hosts = tuple(address.rpartition(":")[0] for address in addresses.values())
    return Cluster(tasks, hosts, int(port), None if own_task is None else tasks.index(own_task))


def init_from_tf_config(
    description: str | None = None, *, timeout: timedelta | None = None
) -> Role:
    """Initialise `torch.distributed`, over Gloo, by a cluster specification of TensorFlow.

    With "task", the process is that one, and all meet at the first task's address. Without, it is
    the one of its rank, by what a launcher has set (torchrun, mpiexec, srun), and all meet where
    the launcher says, if it does. A process group that is there already, as in Ray Train's
    workers, is taken as it is.

    Args:
        description: As `read` takes it; the environment variable TF_CONFIG unless given.
        timeout: Longest wait for the others, as `init_process_group` takes it.

    Returns:
        What this process is. Hand `role.strategy("async")` to `compressa.attach`, as the section
        `strategy`, and call `strategy.serve()` where `strategy.serves`.

    Raises:
        ConfigError: There is no specification, it is none, or it is not the one of all processes.
        Timeout: Somebody did not come.
        TransportError: Nobody can listen at the first task's address.

    Example:
        >>> role = compressa.init_from_tf_config()  # doctest: +SKIP
        >>> config = {"strategy": role.strategy("async")}  # doctest: +SKIP
    """
    if description is None:
        description = os.environ.get(_VARIABLE)
    if description is None:
        raise ConfigError(f"{_VARIABLE} is not set; {_HELP}")
    cluster = read(description)
    if dist.is_initialized():
        return _in_group(cluster)
    this = _started(cluster, os.environ)
    role = cluster.role(this.rank, this.local_rank)
    if this.host is not None and this.port is not None:
        join(role, this.host, this.port, "gloo", timeout)
    else:
        store = _meet(cluster, this.rank, timeout or MEET)
        dist.init_process_group(
            "gloo", store=store, rank=role.rank, world_size=role.size, timeout=timeout
        )
    return role


def _in_group(cluster: Cluster) -> Role:
    rank = dist.get_rank()
    cluster.check_size(dist.get_world_size(), "the process group that is there already")
    if cluster.own not in (None, rank):
        raise ConfigError(
            f"{_VARIABLE} says that this is {cluster.tasks[cluster.own or 0]}, and in the process "
            f'group that is there already it is {cluster.tasks[rank]}; leave "task" out'
        )
    return cluster.role(rank)


def _started(cluster: Cluster, environment: Mapping[str, str]) -> Launched:
    """Return who this process is, and where a launcher has its processes meet."""
    if cluster.own is not None:
        return Launched(cluster.own, len(cluster.tasks), None, False, None, None)
    try:
        this = launched(environment, torchrun=True)
    except ConfigError as error:
        raise ConfigError(f'{_VARIABLE} has no "task", and {error}') from error
    cluster.check_size(this.size, "the launcher")
    return this


def _meet(cluster: Cluster, rank: int, wait: timedelta) -> TCPStore:
    """Meet at the first task's address, and learn whether all are there.

    Raises:
        ConfigError: Processes know of different tasks, or two are the same.
        Timeout: Somebody did not come.
        TransportError: Nobody can listen there.
    """
    me, first = cluster.tasks[rank], cluster.tasks[0]
    where = f"{first}'s address {cluster.hosts[0]}:{cluster.port}"
    try:
        store = TCPStore(cluster.hosts[0].strip("[]"), cluster.port, None, rank == 0, wait, False)
        if store.add(f"{_COUNTS}/{me}", 1) > 1:
            raise ConfigError(f"another process is {me} as well; give each a task of its own")
        store.set(f"{_KNOWN}/{me}", cluster.text)
        if rank == 0:
            _judge(store, cluster, wait)
        else:
            store.wait([_VERDICT], wait + _READ)
        absent, different, text = json.loads(store.get(_VERDICT))
        store.set(f"{_READERS}/{me}", "")
    except dist.DistError as error:
        if rank == 0:
            raise TransportError(
                f"{me} can not listen at {where} ({error}); give it a free port of this host"
            ) from error
        raise Timeout(
            (0,),
            f"{me} was not answered at {where} ({error}); start {first} there, with the same "
            "cluster",
        ) from error
    if absent:
        raise Timeout(
            tuple(map(cluster.tasks.index, absent)),
            f"{', '.join(absent)} did not come to {where} within {wait.total_seconds():g} s; "
            "start all tasks, with the same cluster",
        )
    if different or text != cluster.text:
        raise ConfigError(
            f"not all have the cluster of {first}, whose tasks are {text}: "
            f"{', '.join(different) or me} differs; give all the same cluster"
        )
    return store


def _judge(store: TCPStore, cluster: Cluster, wait: timedelta) -> None:
    """On the first task: wait for all, tell all who is missing, and let them read it."""
    keys = {task: f"{_KNOWN}/{task}" for task in cluster.tasks}
    with suppress(dist.DistStoreError):  # whose keys are missing is seen below
        store.wait([*keys.values()], wait)
    absent = [task for task, key in keys.items() if not store.check([key])]
    here = [task for task in cluster.tasks if task not in absent]
    different = [task for task in here if store.get(keys[task]).decode() != cluster.text]
    store.set(_VERDICT, json.dumps([absent, different, cluster.text]))
    if (absent or different) and here[1:]:
        with suppress(dist.DistStoreError):
            store.wait([f"{_READERS}/{task}" for task in here[1:]], _READ)
