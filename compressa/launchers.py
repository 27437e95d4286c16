"""What launchers tell each process in its environment: its rank, and where to meet.

torchrun and Ray Train set RANK, Hydra (MPICH, Intel MPI) PMI_*, Open MPI OMPI_COMM_WORLD_*, SLURM
SLURM_*. Within a SLURM job mpiexec hands SLURM's variables on, of the job and not of its processes,
and so does srun to a torchrun that it starts: those of the inner one count first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from compressa.errors import ConfigError

_FIRST_PORT, _PORTS = 15000, 15000  # below those that systems give away themselves


@dataclass(frozen=True)
class _Launcher:
    """Variables of one launcher; of those of one kind the first that is set counts."""

    name: str
    rank: str
    sizes: tuple[str, ...]
    local_rank: str
    mpi: bool


_TORCHRUN = _Launcher("torchrun", "RANK", ("WORLD_SIZE",), "LOCAL_RANK", mpi=False)
_LAUNCHERS = (
    _Launcher(
        "Open MPI's mpiexec",
        "OMPI_COMM_WORLD_RANK",
        ("OMPI_COMM_WORLD_SIZE",),
        "OMPI_COMM_WORLD_LOCAL_RANK",
        mpi=True,
    ),
    _Launcher("mpiexec", "PMI_RANK", ("PMI_SIZE",), "MPI_LOCALRANKID", mpi=True),
    _Launcher(
        "srun", "SLURM_PROCID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), "SLURM_LOCALID", mpi=False
    ),
)
_NODES = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")


@dataclass(frozen=True)
class Launched:
    """What a launcher says of this process.

    Attributes:
        rank: Its rank.
        size: Number of ranks.
        local_rank: Its rank among those of its host; None if nobody says.
        mpi: Whether MPI can be asked for the rest.
        host: Where rank 0 can be reached; None if nobody says.
        port: Of rank 0 there; None if nobody says.
    """

    rank: int
    size: int
    local_rank: int | None
    mpi: bool
    host: str | None
    port: int | None


def launched(environment: Mapping[str, str], *, torchrun: bool = False) -> Launched:
    """Read what a launcher has set.

    MASTER_ADDR and MASTER_PORT count before what follows from others. Without them SLURM's list of
    nodes says where rank 0 is, and the port follows from the numbers of job and step.

    Args:
        environment: Has it.
        torchrun: Whether torchrun, or Ray Train, may have started this process as well.

    Raises:
        ConfigError: No launcher has started this process, or it left something out.
    """
    launchers = (_TORCHRUN, *_LAUNCHERS) if torchrun else _LAUNCHERS
    launcher = next((one for one in launchers if one.rank in environment), None)
    if launcher is None:
        raise ConfigError(
            "no launcher has said which rank this process is: none of "
            f"{', '.join(one.rank for one in launchers)} is set; start it by "
            f"{'torchrun, ' * torchrun}mpiexec or srun"
        )
    size = next((name for name in launcher.sizes if name in environment), None)
    if size is None:
        raise ConfigError(
            f"{launcher.rank} is set, but not {' or '.join(launcher.sizes)}: "
            f"{launcher.name} sets both; start all ranks by it"
        )
    ranks = _number(environment, size, 1)
    local = launcher.local_rank
    host, port = environment.get("MASTER_ADDR"), None
    if "MASTER_PORT" in environment:
        port = _number(environment, "MASTER_PORT", 1, 65535)
    if launcher.name == "srun":
        host, port = host or _first_of_job(environment), port or _port_of_job(environment)
    return Launched(
        rank=_number(environment, launcher.rank, 0, ranks - 1),
        size=ranks,
        local_rank=_number(environment, local, 0) if local in environment else None,
        mpi=launcher.mpi,
        host=host,
        port=port,
    )


def first_host(nodes: str) -> str:
    """Return the first host of a list as SLURM writes it.

    Args:
        nodes: Such as "node[01-03,7],login" or "rack[1-2]-node[5-6]".

    Raises:
        ConfigError: It is none.

    Example:
        >>> first_host("rack[2-3]-node[08-11,40]-ib,login")
        'rack2-node08-ib'
    """
    first = next(_names(nodes))
    host = re.sub(r"\[(\w+)(?:-\w+)?(?:,\w+(?:-\w+)?)*\]", r"\1", first)
    if not re.fullmatch(r"[\w.-]+", host):
        raise ConfigError(
            f"SLURM's list of nodes is {nodes!r}, whose first can not be read; set MASTER_ADDR to "
            "the host of rank 0"
        )
    return host


def _names(nodes: str) -> Iterator[str]:
    """Split at commas outside brackets."""
    yield from re.split(r",(?![^\[]*\])", nodes)


def _first_of_job(environment: Mapping[str, str]) -> str:
    nodes = next((environment[name] for name in _NODES if name in environment), None)
    if nodes is None:
        raise ConfigError(
            f"SLURM_PROCID is set, but none of {', '.join(_NODES)}; start all ranks by srun, or "
            "set MASTER_ADDR to the host of rank 0"
        )
    return first_host(nodes)


def _port_of_job(environment: Mapping[str, str]) -> int:
    """Choose a port that two steps on one host hardly share."""
    if "SLURM_JOB_ID" not in environment:
        raise ConfigError(
            "SLURM_PROCID is set, but not SLURM_JOB_ID; start all ranks by srun, or set "
            "MASTER_PORT to a free port of rank 0's host"
        )
    job = _number(environment, "SLURM_JOB_ID", 0)
    step = _number(environment, "SLURM_STEP_ID", 0) if "SLURM_STEP_ID" in environment else 0
    return _FIRST_PORT + (job * 31 + step) % _PORTS


def _number(environment: Mapping[str, str], name: str, least: int, most: int | None = None) -> int:
    text = environment[name]
    if not text.isdecimal() or int(text) < least or (most is not None and int(text) > most):
        bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise ConfigError(f"{name} = {text}, which is no whole number {bounds}")
    return int(text)
