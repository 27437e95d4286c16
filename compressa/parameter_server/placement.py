"""Placement: which ranks of the group are workers, and which are servers.

Colocated servers share ranks with workers, so that every port sends and receives alike: with a
server on each of P ranks, n bytes that are pushed and pulled cost each port 2 (P-1) n b / P.
Dedicated servers have ranks of their own; k of them take max(n b, P n b / k) each way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compressa.errors import ConfigError


@dataclass(frozen=True)
class Placement:
    """Who does what.

    Attributes:
        workers: Their ranks, ascending; a worker's number is its place here.
        servers: Their ranks, ascending; a server's number is its place here.
    """

    workers: tuple[int, ...]
    servers: tuple[int, ...]

    def worker_at(self, rank: int) -> int | None:
        """Return the number of a rank's worker, if it has one."""
        return self.workers.index(rank) if rank in self.workers else None

    def server_at(self, rank: int) -> int | None:
        """Return the number of a rank's server, if it has one."""
        return self.servers.index(rank) if rank in self.servers else None


def place(size: int, servers: int | Sequence[int] | None, *, colocated: bool) -> Placement:
    """Choose ranks.

    Args:
        size: Number of ranks.
        servers: Ranks; or how many, which then are the last ones. None: all ranks if colocated,
            else the last one.
        colocated: Whether servers are workers, too.

    Raises:
        ConfigError: There are no such ranks, or nobody is left to work.

    Example:
        >>> place(3, 1, colocated=False)
        Placement(workers=(0, 1), servers=(2,))
    """
    ranks = _ranks(size, servers, colocated)
    if not ranks or not set(ranks) <= set(range(size)) or len(set(ranks)) != len(ranks):
        raise ConfigError(
            f"servers = {servers!r} does not name servers among {size} ranks; give distinct ranks "
            f"from 0 to {size - 1}, or a number of servers from 1 to {size}"
        )
    workers = range(size) if colocated else sorted(set(range(size)) - set(ranks))
    if not workers:
        raise ConfigError(
            f"all {size} ranks would be dedicated servers, and none a worker; name fewer servers, "
            "or say colocated = True"
        )
    return Placement(tuple(workers), tuple(ranks))


def _ranks(size: int, servers: int | Sequence[int] | None, colocated: bool) -> list[int]:
    if servers is None:
        servers = size if colocated else 1
    if isinstance(servers, int):
        return list(range(max(0, size - servers), size)) if 0 < servers <= size else []
    return sorted(servers)
