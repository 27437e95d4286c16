"""Process groups of compressa's own: made by all ranks together, and given back.

torch names a group after its ranks and how many groups are known; a group joins its threads when
its last reference goes. Both matter when handles are closed, reformed and opened anew.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from compressa.config import Config
from compressa.engine.rollcall import RollCall
from compressa.errors import BackendUnavailable, ConfigError
from compressa.transports.mpi_process import left_behind

_GROUP_MARGIN_S = 0.5
_NCCL_PATIENCE = 4.0
_ERROR_HANDLING = "TORCH_NCCL_ASYNC_ERROR_HANDLING"  # read when a group is made

_retired: list[dist.ProcessGroup] = []


def is_part(group: dist.ProcessGroup) -> bool:
    """Whether not all ranks are in it."""
    return group.size() != dist.get_world_size()


def new_group(
    config: Config, group: dist.ProcessGroup, backend: str, caller: str
) -> dist.ProcessGroup:
    """Create a process group of the ranks of `group`, who must all do so together.

    Args:
        config: How long to wait.
        group: Of whom.
        backend: Of torch's.
        caller: The function that the user called, which an error names.

    Raises:
        Timeout: They do not, or one of them is lost.
    """
    # The engine's own deadline comes first: it knows whom it waits for.
    nccl = backend == "nccl"
    patience = _NCCL_PATIENCE if nccl else 1.0
    timeout = timedelta(seconds=patience * config.exchange.deadline_s + _GROUP_MARGIN_S)
    _bury_retired()
    device = torch.cuda.current_device() if nccl else None

    def create() -> dist.ProcessGroup:
        with contextlib.ExitStack() as stack:
            if device is not None:
                stack.enter_context(torch.cuda.device(device))  # each thread has one of its own
                stack.enter_context(_left_alone_by_torch())
            made: dist.ProcessGroup = dist.new_group(
                dist.get_process_group_ranks(group),
                timeout=timeout,
                backend=backend,
                pg_options=_nccl_options(timeout) if nccl else None,
                use_local_synchronization=is_part(group),
            )
        return made

    return RollCall(group, patience * config.exchange.deadline_s, caller).together(create)


@contextlib.contextmanager
def _left_alone_by_torch() -> Iterator[None]:
    """Have torch not end the process when a group that is made now fails.

    The engine sees to that: it aborts the group, and the user gets an error to act upon.
    """
    before = os.environ.get(_ERROR_HANDLING)
    os.environ[_ERROR_HANDLING] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_ERROR_HANDLING]
        else:
            os.environ[_ERROR_HANDLING] = before


def _nccl_options(timeout: timedelta) -> Any:
    """Exchanges go before the kernels of backward, as what is exchanged does."""
    options = dist.ProcessGroupNCCL.Options()
    options.is_high_priority_stream = True
    options._timeout = timeout  # torch warns if it is not the same in both places
    return options


def release_groups(groups: list[dist.ProcessGroup]) -> None:
    """Give the groups' threads and sockets back, and empty the list.

    All that used them must have ended.
    """
    while groups:
        _retire(groups.pop())
    _bury_retired()


def give_up(config: Config, groups: list[dist.ProcessGroup], error: BaseException) -> None:
    """Give back the groups of an opening that has failed."""
    alike = isinstance(error, ConfigError | BackendUnavailable)  # on every rank
    if config.exchange.transport == "mpi" and not alike:
        left_behind()  # whoever is lost will not come to MPI's end either
    release_groups(groups)


def _retire(group: dist.ProcessGroup) -> None:
    # The user may have destroyed all groups already. A sub-group is named after its ranks and how
    # many groups are known. So it stays known, and another in place of one that is destroyed:
    # no name comes twice, nor differs because some rank has not closed yet.
    known = dist.distributed_c10d._world.pg_names
    stand_in: Any = dist.ProcessGroup  # which mypy thinks needs a store
    with contextlib.suppress(ValueError, KeyError):
        if not is_part(group):
            name = known[group]
            dist.destroy_process_group(group)
            known[stand_in(0, 1)] = name
    _retired.append(group)


def _bury_retired() -> None:
    """Let go of retired groups that nothing else refers to.

    A group joins its threads when its last reference goes, and aborts the process if that
    happens on one of them, at the end of a callback. So the last one is kept here.
    """
    idle_references = 3  # the list's, the loop's, the argument's
    _retired[:] = [group for group in _retired if sys.getrefcount(group) > idle_references]
