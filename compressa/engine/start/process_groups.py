"""Process groups of compressa's own, which torch.distributed does not know of.

Their backend is made directly, over a part of the store that only its ranks use. So the ranks of a
part of the world need nobody else, torch's own groups keep their names (it names a group by how
many it knows, and ranks that count differently wait for ever), and nothing stays when the last
reference goes.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from compressa.config import Config
from compressa.engine.start.monitored_call import MonitoredCall
from compressa.errors import BackendUnavailable, ConfigError, StateError
from compressa.transports import forks
from compressa.transports.table import meant

_GROUP_MARGIN_S = 0.5
_NCCL_PATIENCE = 4.0
_ERROR_HANDLING = "TORCH_NCCL_ASYNC_ERROR_HANDLING"  # read when a group is made

_retired: list[dist.ProcessGroup] = []


def group_or_world(group: dist.ProcessGroup | None, caller: str) -> dist.ProcessGroup:
    """Return a process group that the user has given, or that of all ranks.

    Args:
        group: The user's; None for all ranks.
        caller: The function that the user called, which the error names.

    Raises:
        StateError: There is none, or this rank is not in it.
    """
    ranks = group
    if ranks is None and dist.is_available() and dist.is_initialized():
        ranks = dist.group.WORLD
    if not isinstance(ranks, dist.ProcessGroup):
        raise StateError(
            f"{caller} needs a process group that this rank is in; call "
            "torch.distributed.init_process_group first, or give a group"
        )
    return ranks


def new_group(
    config: Config,
    group: dist.ProcessGroup,
    backend: str,
    caller: str,
) -> dist.ProcessGroup:
    """Create a process group of the ranks of `group`, who must all do so together.

    It is none of torch's: `release_groups` ends it, and torch counts no group more.

    Args:
        config: How long to wait.
        group: Of whom.
        backend: Of torch's, "gloo" or "nccl".
        caller: The function that the user called, which an error names.

    Raises:
        Timeout: They do not, or one of them is lost.
    """
    if backend == "nccl":
        return _new_nccl_group(config, group, caller)
    return _new_gloo_group(config, call_of_all(group, config.exchange.start_wait_s, caller))


def call_of_all(group: dist.ProcessGroup, deadline_s: float, caller: str) -> MonitoredCall:
    """Return a collective call of the ranks of a group; see `MonitoredCall`.

    Args:
        group: Whose name and ranks it has.
        deadline_s: How many seconds the ranks may take to come.
        caller: The function that the user called, for people.
    """
    return MonitoredCall(group.group_name, group.rank(), group.size(), deadline_s, caller)


def new_group_of(config: Config, ranks: Sequence[int], caller: str) -> dist.ProcessGroup:
    """Create a process group of Gloo, of some ranks of the world; only they need to do so.

    Args:
        config: How long to wait.
        ranks: Of the default group, in the order that they have in the new one.
        caller: The function that the user called, which an error names.

    Raises:
        ConfigError: This rank is not among them, or one is there twice or not at all.
        Timeout: They do not all do so, or one of them is lost.
    """
    own, size = dist.get_rank(), dist.get_world_size()
    known = len(set(ranks)) == len(ranks) and set(ranks) <= set(range(size))
    if not known or own not in ranks:
        raise ConfigError(
            f"{caller} was given the ranks {list(ranks)} on rank {own} of {size}; give different "
            "ranks of the default group, this one among them, and the same list on each"
        )
    name = "ranks " + ",".join(map(str, ranks))
    index, deadline_s = list(ranks).index(own), config.exchange.start_wait_s
    return _new_gloo_group(config, MonitoredCall(name, index, len(ranks), deadline_s, caller))


def _new_gloo_group(config: Config, call: MonitoredCall) -> dist.ProcessGroup:
    # The engine's own deadline comes first: it knows whom it waits for.
    timeout = timedelta(seconds=config.exchange.deadline_s + _GROUP_MARGIN_S)
    _bury_retired()

    def create(name: str, store: Store) -> dist.ProcessGroup:
        with forks.owning_new():
            backend = dist.ProcessGroupGloo(store, call.rank, call.size, timeout)
        return _around(backend, name, store, torch.device("cpu"))

    return call.run(create)


def _new_nccl_group(config: Config, group: dist.ProcessGroup, caller: str) -> dist.ProcessGroup:
    deadline_s = _NCCL_PATIENCE * config.exchange.deadline_s
    start_s = _NCCL_PATIENCE * config.exchange.start_wait_s
    call = call_of_all(group, start_s, caller)
    device = torch.device("cuda", torch.cuda.current_device())
    _bury_retired()

    def create(name: str, store: Store) -> dist.ProcessGroup:
        options = _nccl_options(timedelta(seconds=deadline_s + _GROUP_MARGIN_S))
        options.group_name = name
        options.global_ranks_in_group = dist.get_process_group_ranks(group)
        # Each thread has a current device of its own.
        with torch.cuda.device(device), _left_alone_by_torch():
            backend = dist.ProcessGroupNCCL(store, call.rank, call.size, options)
        return _around(backend, name, store, device)

    return call.run(create)


def _around(backend: Any, name: str, store: Store, device: torch.device) -> dist.ProcessGroup:
    """Return the process group that has one backend."""
    kinds: Any = dist.ProcessGroup.BackendType
    kind = kinds.GLOO if device.type == "cpu" else kinds.NCCL
    made = dist.ProcessGroup(store, backend.rank(), backend.size())
    made._set_default_backend(kind)
    made._register_backend(device, kind, backend)
    label: Any = name  # a type of its own to mypy
    made._set_group_name(label)
    return made


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
    options._timeout = timeout
    return options


def release_groups(groups: list[dist.ProcessGroup]) -> None:
    """Give the groups' threads and sockets back, and empty the list.

    All that used them must have ended. A group that somebody else still holds is kept until the
    next call.
    """
    _retired.extend(groups)
    groups.clear()
    _bury_retired()


def give_up(
    config: Config, groups: list[dist.ProcessGroup], error: BaseException, *, met: bool
) -> None:
    """Give back the groups of an opening that has failed.

    Args:
        config: Settings.
        groups: Which; the list is emptied.
        error: Why.
        met: Whether all ranks had come to it.
    """
    alike = isinstance(error, ConfigError | BackendUnavailable)  # on every rank
    if not alike:
        for row in meant(config.exchange.transport):
            row.note_failed_start(met=met)
    release_groups(groups)


def _bury_retired() -> None:
    """Let go of retired groups that nothing else refers to.

    A group joins its threads when its last reference goes, and aborts the process if that
    happens on one of them, at the end of a callback. So the last one is kept here.
    """
    idle = _references([object()])[0]
    counts = _references(_retired)
    _retired[:] = [group for group, n in zip(_retired, counts, strict=True) if n > idle]


def _references(things: Sequence[object]) -> list[int]:
    """Count who refers to each, with what the list and this function add."""
    return [sys.getrefcount(thing) for thing in things]
