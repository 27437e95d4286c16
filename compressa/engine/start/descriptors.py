"""Descriptors: whether a rank may open as many files as it needs, before it begins to.

Once they run out, whatever needs the next one fails, mostly inside a library: a group that is never
made, a rank that seems to be gone. So they are counted beforehand.
"""

from __future__ import annotations

import os
import sys

from compressa.config import Config
from compressa.errors import TransportError
from compressa.transports.table import meant

_MESHES = 2  # the control channel, and a process group: a connection to every other rank each
_OTHERS = 12  # listeners, epoll instances, pipes, and a spare


def descriptors_needed(config: Config, ranks: int) -> int:
    """Return how many files the control channel, the group and the transport of a rank keep open.

    Args:
        config: Says which transport. What a library such as NCCL or MPI opens comes on top.
        ranks: Number of ranks.
    """
    exchange = config.exchange
    several = any(row.connections for row in meant(exchange.transport))
    own = exchange.connections + 1 if several else 0  # one for signs of life
    return (_MESHES + own) * (ranks - 1) + several + _OTHERS


def too_few_descriptors(needed: int) -> TransportError | None:
    """Return what to raise if this process may not open so many more; None if it may.

    Where nobody can tell, as outside of Linux, it may.
    """
    if sys.platform != "linux":
        return None
    import resource  # there is none on Windows

    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    try:
        used = len(os.listdir("/proc/self/fd"))
    except OSError:
        used = limit
    if limit == resource.RLIM_INFINITY or used + needed <= limit:
        return None
    return TransportError(
        f"this process may open {limit} files, has {used} and needs {needed} more for its "
        f"connections; raise the limit where it is started: ulimit -n {max(1024, used + needed)}"
    )
