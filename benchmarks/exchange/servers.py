"""Parameter servers: every worker pushes one value, and pulls the mean of all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import final

import torch
import torch.distributed as dist

from benchmarks.exchange.compressed import ToMeans, check_mean, random_values
from benchmarks.exchange.method import Verb
from compressa.compressors import COMPRESSORS
from compressa.engine.session import Session
from compressa.link.operations import Operation, nothing
from compressa.parameter_server import Server, Worker, open_parameter_server

KEY = "value"


@final
@dataclass(frozen=True)
class Served(ToMeans):
    """The mean of a value over the workers; the size is that of the value.

    Attributes:
        workers: On as many hosts; 0 for a worker and a colocated server on each.
        servers: On the hosts after these.
    """

    workers: int = 0
    servers: int = 0
    verb: Verb = field(default="push_pull", kw_only=True)

    @classmethod
    def dedicated(cls, compressor: str, workers: int, servers: int) -> Served:
        """Servers on hosts of their own; hosts beyond these look on."""
        name, ranks = f"server {compressor} {workers}+{servers}", workers + servers
        return cls(name, "compressa", compressor, workers, servers, least_ranks=ranks)

    @classmethod
    def colocated(cls, compressor: str) -> Served:
        """A server beside every worker."""
        return cls(f"server {compressor} colocated", "compressa", compressor)

    def wire_bytes(self, size_bytes: int) -> int:
        """Bytes of a payload of the whole value."""
        return COMPRESSORS[self.compressor].compressor().payload_bytes((size_bytes // 4,))

    def formula_bytes(self, size_bytes: int, ranks: int) -> float:
        """Of payloads, what passes the busiest port one way, while as much passes the other way."""
        if not self.workers:
            return 2 * (ranks - 1) / ranks * self.wire_bytes(size_bytes)
        return max(1.0, self.workers / self.servers) * self.wire_bytes(size_bytes)

    def sent_bytes(self, size_bytes: int, ranks: int) -> int:
        """A payload each way for every worker, but for what stays on its host."""
        return 2 * (self.workers or ranks - 1) * self.wire_bytes(size_bytes)

    def memory_bytes(self, size_bytes: int, ranks: int) -> int:
        """Values, means, residuals, and payloads of two steps at both ends."""
        return 10 * ranks * size_bytes

    def operation(self, size_bytes: int, session: Session) -> Operation:
        """Push random values, each worker's its own."""
        ranks = list(range(self.workers + self.servers or session.size))
        group = dist.new_group(ranks)
        if session.rank not in ranks:
            onlooker = partial(check_mean, self.name, self.compressor, None, [], session)
            return Operation(nothing, onlooker)
        assert isinstance(group, dist.ProcessGroup)
        elems, workers = size_bytes // 4, self.workers or session.size
        node = open_parameter_server(
            group,
            {KEY: (elems,)},
            {"compressor": {"name": self.compressor}, "exchange": {"transport": "tcp"}},
            servers=self.servers or None,
            colocated=not self.workers,
        )
        values, mean = random_values(session.rank, elems), torch.empty(elems)

        def close() -> None:
            if isinstance(node, Server):
                node.serve()
            else:
                node.close()
            dist.destroy_process_group(group)

        def verify() -> None:
            given = [random_values(worker, elems) for worker in range(workers)]
            found = mean if isinstance(node, Worker) else None
            check_mean(self.name, self.compressor, found, given, session)

        return Operation(_call(node, values, mean), verify, close)


def _call(node: Worker | Server, values: torch.Tensor, mean: torch.Tensor) -> Callable[[], object]:
    if isinstance(node, Server):
        return nothing  # its threads do all of it

    def call() -> None:
        node.push(KEY, values)
        node.wait(node.pull(KEY, mean))

    return call
