"""Starting ranks from what other frameworks' launchers say of them."""

from __future__ import annotations

import ipaddress
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from importlib.util import find_spec
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from compressa.errors import ConfigError, StateError
from compressa.launchers import RANKS, Launched, launched
from compressa.transports.mpi_process import gather_all, load
from compressa.transports.rendezvous import local_address

_VARIABLE = "TF_CONFIG"
_WORKERS, _SERVERS = ("chief", "master", "worker"), ("ps",)
_MEET = timedelta(minutes=30)  # as torch's own for Gloo
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
        local_rank: Its rank among those of its host, for `torch.cuda.set_device`; None if nobody
            says.
    """

    rank: int
    size: int
    servers: int
    address: str
    local_rank: int | None

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
    hosts = [cluster[kind][index].rpartition(":")[0] for kind, index in tasks]
    return Role(rank, len(tasks), servers, address, hosts[:rank].count(hosts[rank]))


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
    _join(role, "gloo", timeout)
    return role


def init_from_mpi(*, backend: str = "gloo", timeout: timedelta | None = None) -> Role:
    """Initialise `torch.distributed` in a process that mpiexec or srun has started.

    Each says which rank it is: Open MPI in OMPI_COMM_WORLD_*, MPICH and others with Hydra in PMI_*,
    SLURM in SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID and SLURM_JOB_NODELIST. Where to meet say
    MASTER_ADDR and MASTER_PORT, if they are set; else rank 0 tells a free port by MPI, with mpi4py;
    or, under srun, it is the first host of the list, and a port by the job's number.

    Args:
        backend: As `init_process_group` takes it.
        timeout: Longest wait for the others, as `init_process_group` takes it.

    Returns:
        What this process is.

    Raises:
        ConfigError: No launcher has started this process, or nobody says where to meet.
        BackendUnavailable: There is mpi4py, but no MPI that it could use.
        StateError: There is a process group already.
        Timeout: Rank 0 did not say where to meet.

    Example:
        >>> role = compressa.init_from_mpi()  # doctest: +SKIP
    """
    if dist.is_initialized():
        raise StateError("compressa.init_from_mpi: there is a process group already")
    this = launched(os.environ)
    _store = None  # serves the port until the process group does
    if this.host is None or this.port is None:
        this, _store = _asked(this, (timeout or _MEET).total_seconds())
    assert this.host is not None, "what was asked has an answer"
    host = f"[{this.host}]" if ":" in this.host else this.host
    role = Role(this.rank, this.size, 0, f"{host}:{this.port}", this.local_rank)
    _join(role, backend, timeout)
    return role


def _asked(this: Launched, deadline_s: float) -> tuple[Launched, TCPStore | None]:
    """Learn by MPI what the environment does not say.

    Returns:
        All of it; and on rank 0 the store that serves the port, if it was to choose one.
    """
    _check_mpi(this)
    mpi, store = load(this.size), None
    if (mpi.COMM_WORLD.rank, mpi.COMM_WORLD.size) != (this.rank, this.size):
        raise ConfigError(
            f"mpiexec says that this is rank {this.rank} of {this.size}, and mpi4py that it is "
            f"{mpi.COMM_WORLD.rank} of {mpi.COMM_WORLD.size}: they are of two MPIs; use the "
            "mpiexec of mpi4py's"
        )
    if this.rank == 0 and this.port is None:
        store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False, multi_tenant=True)
    port = store.port if store is not None else this.port
    mine = json.dumps([mpi.Get_processor_name(), this.host or local_address(), port])
    told = [json.loads(text) for text in gather_all(mpi, mine.encode(), deadline_s)]
    computers, (_, host, port) = [computer for computer, _, _ in told], told[0]
    if len(set(computers)) == 1:
        host = this.host or "127.0.0.1"
    elif _is_loopback(host):
        raise ConfigError(
            f"rank 0's host {computers[0]!r} calls itself {host}, where no other host reaches it; "
            "set MASTER_ADDR to its address, or GLOO_SOCKET_IFNAME to the interface that hosts "
            "reach each other by"
        )
    local = computers[: this.rank].count(computers[this.rank])
    return replace(this, host=host, port=port, local_rank=local), store


def _check_mpi(this: Launched) -> None:
    """Raise ConfigError where nobody can be asked."""
    if this.mpi and find_spec("mpi4py") is not None:
        return
    said = {"MASTER_ADDR": this.host, "MASTER_PORT": this.port}
    missing = " and ".join(name for name, value in said.items() if value is None)
    raise ConfigError(
        f"{missing} must say where rank 0 is met, since there is no mpi4py by which it could tell "
        'the others; pip install "compressa[mpi]", or start ranks by "mpiexec -genv MASTER_ADDR '
        'HOST -genv MASTER_PORT 29500 ..." (Open MPI: -x MASTER_ADDR=HOST -x MASTER_PORT=29500)'
    )


def _is_loopback(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _join(role: Role, backend: str, timeout: timedelta | None) -> None:
    dist.init_process_group(
        backend,
        init_method=f"tcp://{role.address}",
        rank=role.rank,
        world_size=role.size,
        timeout=timeout,
    )


def _launched(environment: Mapping[str, str], size: int) -> int:
    for name in RANKS:
        if name in environment:
            text = environment[name]
            if not text.isdecimal() or int(text) >= size:
                raise ConfigError(
                    f"{name} = {text}, and {_VARIABLE} has {size} tasks; start as many processes"
                )
            return int(text)
    raise ConfigError(
        f'{_VARIABLE} has no "task", and no launcher has set {", ".join(RANKS)}; {_HELP}'
    )
