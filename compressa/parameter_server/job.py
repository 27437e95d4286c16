"""Job: what all ranks of a parameter server have agreed upon, and which ranks do what.

Colocated servers share ranks with workers, so that every port sends and receives alike: with a
server on each of P ranks, n bytes that are pushed and pulled cost each port 2 (P-1) n b / P.
Dedicated servers have ranks of their own; k of them take max(n b, P n b / k) each way.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from compressa.codecs.base import Biased
from compressa.config import Config, assign
from compressa.errors import ConfigError
from compressa.parameter_server.clocks import Consistency
from compressa.parameter_server.coding import Coding, coding_of
from compressa.parameter_server.keys import MOST_SHARDS, KeyTable, describe, shard_keys
from compressa.parameter_server.protocol import Units
from compressa.parameters import ParameterInfo
from compressa.schedulers import Transfer
from compressa.transports.table import AUTO, TRANSPORTS, meant


@dataclass(frozen=True)
class Placement:
    """Who does what.

    Attributes:
        workers: Their ranks, ascending; a worker's number is its index here.
        servers: Their ranks, ascending; a server's number is its index here.
    """

    workers: tuple[int, ...]
    servers: tuple[int, ...]

    def worker_at(self, rank: int) -> int | None:
        """Return the number of a rank's worker, if it has one."""
        return self.workers.index(rank) if rank in self.workers else None

    def server_at(self, rank: int) -> int | None:
        """Return the number of a rank's server, if it has one."""
        return self.servers.index(rank) if rank in self.servers else None


def assign_roles(size: int, servers: int | Sequence[int] | None, *, colocated: bool) -> Placement:
    """Choose ranks.

    Args:
        size: Number of ranks.
        servers: Ranks; or how many, which then are the last ones. None: all ranks if colocated,
            else the last one.
        colocated: Whether servers are workers, too.

    Raises:
        ConfigError: There are no such ranks, or nobody is left to work.

    Example:
        >>> assign_roles(3, 1, colocated=False)
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


@dataclass(frozen=True)
class Job:
    """Everything that does not change.

    Attributes:
        table: The keys and their shards.
        placement: Workers and servers.
        seed: Of random bits.
        first_step: The first step that is pushed.
        epoch: Of the transport.
        server_bits_per_s: Rate of a server's port, if workers push in slots.
        deadline_s: Longest wait.
        consistency: What workers may rely on that update values; None if servers keep sums.
        units: Names of messages.
    """

    table: KeyTable
    placement: Placement
    seed: int
    first_step: int
    epoch: int = 0
    server_bits_per_s: float | None = None
    deadline_s: float = math.inf
    consistency: Consistency | None = None
    units: Units = field(init=False)

    def __post_init__(self) -> None:
        roles = self.placement
        units = Units(len(self.table.shards), len(roles.workers), len(roles.servers))
        object.__setattr__(self, "units", units)

    def facts(self) -> dict[str, Any]:
        """Return, as JSON, what follows from the arguments of every rank."""
        keys = {key.name: list(key.shape) for key in self.table.parameters}
        return {
            "keys": keys,
            "order of keys": list(keys),
            "workers": list(self.placement.workers),
            "servers": list(self.placement.servers),
            "first_step": self.first_step,
            "consistency": None if self.consistency is None else asdict(self.consistency),
        }

    def transfers(self, rank: int) -> Iterator[Transfer]:
        """List the payloads of a rank's step, the first key's first; requests go before all."""
        worker, server = self.placement.worker_at(rank), self.placement.server_at(rank)
        for shard in self.table.shards:
            coding = self.table.codings[shard.key]
            size = coding.compressor.payload_bytes((shard.segment.elems,))
            push = self.units.push(shard)
            if self.consistency is not None and worker is not None:
                push = self.units.update(shard, worker)
            if worker is not None:
                yield Transfer(push, 0, size)
                if shard.server != server:
                    yield Transfer(self.units.answer(shard, worker), 0, size)
            for other in range(len(self.placement.workers)) if shard.server == server else ():
                yield Transfer(self.units.answer(shard, other), 0, size)


def plan_job(
    config: Config,
    keys: Mapping[str, Sequence[int] | torch.Tensor],
    placement: Placement,
    first_step: int = 0,
    consistency: Consistency | None = None,
) -> Job:
    """Resolve a configuration for keys.

    Args:
        config: The configuration.
        keys: Shapes, or float32 tensors on the CPU that have them, by name.
        placement: Workers and servers.
        first_step: Number of the first step that is pushed.
        consistency: What workers may rely on that update values; None if servers keep sums.

    Raises:
        ConfigError: It can not be had from a parameter server, or a key is not one.
    """
    infos = describe(keys)
    assigned = assign(config, infos)
    codings = [coding_of(assigned[info.name], info) for info in infos]
    return job_of(config, infos, codings, placement, first_step, consistency)


def job_of(
    config: Config,
    infos: Sequence[ParameterInfo],
    codings: Sequence[Coding],
    placement: Placement,
    first_step: int = 0,
    consistency: Consistency | None = None,
) -> Job:
    """Plan for keys whose compressors are known already.

    Args:
        config: The configuration.
        infos: The keys.
        codings: What compresses each.
        placement: Workers and servers.
        first_step: Number of the first step that is pushed.
        consistency: As `plan_job` takes it.

    Raises:
        ConfigError: It can not be had from a parameter server.
    """
    _check(config, first_step)
    if consistency is not None:
        _check_updates(config, placement, consistency, codings)
    compressors = [coding.compressor for coding in codings]
    least_bytes = config.exchange.unit_payload_bytes
    most_shards = 1 if placement.workers == placement.servers else MOST_SHARDS
    shards = shard_keys(infos, compressors, len(placement.servers), least_bytes, most_shards)
    return Job(
        KeyTable(tuple(infos), tuple(codings), shards),
        placement,
        config.engine.seed,
        first_step,
        server_bits_per_s=config.schedule.server_bits_per_s,
        deadline_s=config.exchange.deadline_s,
        consistency=consistency,
    )


def check_meets_in_pairs(config: Config, who: str = "a worker and a server") -> None:
    """Refuse a transport that needs all ranks in every exchange.

    Args:
        config: The configuration.
        who: Which two meet alone, for the message.

    Raises:
        ConfigError: It names such a transport.
    """
    transport = config.exchange.transport
    if all(row.ordered for row in meant(transport)):
        others = ", ".join(name for name, row in TRANSPORTS.items() if not row.ordered)
        raise ConfigError(
            f'exchange.transport = "{transport}" needs all ranks in every exchange, and {who} meet '
            f'alone; use "{AUTO}", or one of {others}'
        )


def _check(config: Config, first_step: int) -> None:
    check_meets_in_pairs(config)
    exchange = config.exchange
    if exchange.kind not in ("auto", "scatter_reduce") or exchange.algorithm != "auto":
        raise ConfigError(
            f'exchange.kind = "{exchange.kind}" and exchange.algorithm = "{exchange.algorithm}": '
            "a parameter server is a way to exchange by itself; leave both out"
        )
    if config.engine.device == "cuda":
        raise ConfigError(
            'engine.device = "cuda": a parameter server takes values on the CPU; leave it out'
        )
    if first_step < 0:
        raise ConfigError(f"first_step must not be negative: {first_step}")


def _check_updates(
    config: Config, placement: Placement, consistency: Consistency, codings: Sequence[Coding]
) -> None:
    if config.schedule.server_bits_per_s is not None:
        raise ConfigError(
            "schedule.server_bits_per_s gives slots to workers that push together, and with a "
            "staleness they do not; leave it out"
        )
    if consistency.backup_workers >= len(placement.workers):
        raise ConfigError(
            f"backup_workers = {consistency.backup_workers}, but there are only "
            f"{len(placement.workers)} workers, and some must be waited for; use fewer"
        )
    for coding in codings:
        if isinstance(coding.codec.bias(coding.codec.block_elems or 1), Biased):
            raise ConfigError(
                f"{coding.codec.name} is no contraction as configured, and workers would not come "
                "nearer to the values that a server keeps; choose another codec, such as int8, "
                "onebit or topk"
            )
