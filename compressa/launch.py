"""Roles of processes, and process groups of ranks that mpiexec or srun has started."""

from __future__ import annotations

import ipaddress
import json
import os
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from importlib.util import find_spec
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from compressa.errors import ConfigError, StateError
from compressa.launchers import Launched, launched
from compressa.transports.mpi_process import gather_all, load
from compressa.transports.rendezvous import local_address

MEET = timedelta(minutes=30)  # as torch's own for Gloo


@dataclass(frozen=True)
class Role:
    """What a process is in a cluster.

    Attributes:
        rank: Its rank: chief and workers come first, then servers.
        size: Number of ranks.
        servers: How many only keep values, which are the last ranks.
        local_rank: Its rank among those of its host, for `torch.cuda.set_device`; None if nobody
            says.
    """

    rank: int
    size: int
    servers: int
    local_rank: int | None

    def strategy(self, name: str, **settings: Any) -> dict[str, Any]:
        """Return the section `[strategy]` of a strategy for this cluster.

        Args:
            name: With servers "async" or "bounded", which have them keep the values; else any.
            settings: Further settings of it.
        """
        roles = {"servers": self.servers, "dedicated": True} if self.servers else {}
        return {"name": name, **roles, **settings}


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
        this, _store = _asked(this, (timeout or MEET).total_seconds())
    assert this.host is not None, "what was asked has an answer"
    assert this.port is not None, "what was asked has an answer"
    role = Role(this.rank, this.size, 0, this.local_rank)
    join(role, this.host, this.port, backend, timeout)
    return role


def join(role: Role, host: str, port: int, backend: str, timeout: timedelta | None) -> None:
    """Initialise `torch.distributed` where a launcher says.

    Args:
        role: This process's.
        host: Of rank 0.
        port: Of rank 0, or of torchrun's store there.
        backend: As `init_process_group` takes it.
        timeout: As `init_process_group` takes it.
    """
    dist.init_process_group(
        backend,
        init_method=f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}",
        rank=role.rank,
        world_size=role.size,
        timeout=timeout,
    )


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
