"""open_parameter_server: from a process group, keys and a configuration to workers and servers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
import torch.distributed as dist

from compressa.config import Config, Source, load_config
from compressa.config.strategies import check_followed
from compressa.engine.opening import open_session
from compressa.engine.session import Session
from compressa.errors import CompressaError
from compressa.parameter_server.clocks import Consistency
from compressa.parameter_server.job import Job, assign_roles, plan_job
from compressa.parameter_server.programs import Programs
from compressa.parameter_server.server import Server
from compressa.parameter_server.worker import Worker

_CALLER = "open_parameter_server"


def open_parameter_server(
    group: dist.ProcessGroup,
    keys: Mapping[str, Sequence[int] | torch.Tensor],
    config: Source,
    *,
    servers: int | Sequence[int] | None = None,
    colocated: bool = True,
    first_step: int = 0,
    consistency: Consistency | None = None,
) -> Worker | Server:
    """Open a parameter server. Collective over the ranks of a process group.

    Servers keep the sums of synchronous steps; or, with a consistency, values that workers update
    without all meeting: `Worker.push` takes an update then, and `pull` brings the values.

    Every key is compressed as a parameter of its name and shape would be. Each key is a message of
    its own: put small tensors together.

    Args:
        group: Workers and servers.
        keys: Shapes, or float32 tensors on the CPU that have them, by name; the most urgent first.
        config: Path of a TOML file, a mapping, or a `Config`.
        servers: Ranks of the servers in the group, or how many, which then are the last ranks.
            Unless given all ranks if colocated, else the last one.
        colocated: Whether the servers' ranks are workers, too. Else they only serve.
        first_step: Number of the first step that is pushed.
        consistency: What workers may rely on where servers keep values. Those begin as the keys'
            tensors, which must be the same on all ranks; zeros where only shapes are given.

    Returns:
        A `Worker`; or on the rank of a dedicated server a `Server`, to be told to `serve`.

    Raises:
        ConfigError: The arguments are wrong, or differ between ranks; on every rank.
        Timeout: Not all ranks open it.
    """
    settings, failure = Config(), None
    try:
        settings = load_config(config)
    except CompressaError as error:
        failure = error

    def plan() -> Job:
        check_followed(settings.strategy, _CALLER)
        roles = assign_roles(group.size(), servers, colocated=colocated)
        return plan_job(settings, keys, roles, first_step, consistency)

    def values() -> Sequence[torch.Tensor]:
        return () if consistency is None else values_of(keys)

    return open_job(_CALLER, settings, group, plan, values, failure)


def open_job(
    caller: str,
    config: Config,
    group: dist.ProcessGroup,
    plan: Callable[[], Job],
    values: Callable[[], Sequence[torch.Tensor]],
    failure: CompressaError | None = None,
) -> Worker | Server:
    """Have all ranks agree on a job, and begin it. Collective.

    Args:
        caller: The function that the user called, which errors name.
        config: Settings; all ranks' must be equal.
        group: Workers and servers.
        plan: Makes the job; raises a CompressaError if this rank can not take part after all, of
            which the others are told.
        values: Called when all have agreed; by key, what servers keep at first.
        failure: Why this rank can not take part anyhow.

    Raises:
        CompressaError: As `open_parameter_server`.
    """
    job: Job | None = None
    try:
        job = None if failure is not None else plan()
    except CompressaError as error:
        failure = error
    elems = job.table.elems if job else 1
    session = open_session(config, group, elems, None, failure=failure, caller=caller)
    with session.closed_on_error():
        assert job is not None  # else the failure was raised, here and on the other ranks
        session.agree(job.facts())
        return begin(replace(job, epoch=session.transport.epoch), session, values())


def begin(job: Job, session: Session, values: Sequence[torch.Tensor] = ()) -> Worker | Server:
    """Begin what this rank does of a job.

    Args:
        job: What all ranks have agreed upon.
        session: Carries it out; closed with what is returned.
        values: By key, what servers keep at first; empty if they keep sums.

    Returns:
        A `Worker`; or on the rank of a dedicated server a `Server`.
    """
    session.follow(list(job.transfers(session.rank)), [])
    programs = Programs(session)
    worker = job.placement.worker_at(programs.rank)
    if worker is not None:
        return Worker(job, worker, programs, values)
    server = job.placement.server_at(programs.rank)
    assert server is not None  # every rank is one or the other, or both
    return Server(job, server, programs, None, values)


def values_of(keys: Mapping[str, Sequence[int] | torch.Tensor]) -> list[torch.Tensor]:
    """Return by key what servers keep at first: float32, 1-D."""
    return [
        key.detach().reshape(-1) if isinstance(key, torch.Tensor) else torch.zeros(math.prod(key))
        for key in keys.values()
    ]
