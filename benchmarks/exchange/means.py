"""Means of random values, by compressors: through the engine, or by a parameter server.

Encode and decode are included. The engine's gradients are cut into units as in training, and all of
them are under way at once; to a server every worker pushes one value, and pulls the mean of all.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import final

import torch
import torch.distributed as dist

import compressa
from benchmarks.exchange.method import Method, Needs, Verb
from compressa.compressors import COMPRESSORS
from compressa.engine.session import Session
from compressa.link.operations import Operation, nothing
from compressa.parameter_server import Server, Worker, open_parameter_server

KEY = "value"
_LAYER_ELEMS = 256 * 1024
_NO_MEAN = b"-"
_EXACT_BITS = 20  # of what is not quantised: float32 rounds


@dataclass(frozen=True)
class ToMeans(Method):
    """Bring values of float32 to their mean.

    Attributes:
        compressor: A name of the table of compressors, with its defaults and feedback.
    """

    compressor: str

    def check(self, mean: torch.Tensor | None, ranks: Sequence[int], session: Session) -> None:
        """Compare a mean with the true one, and with that of the other ranks. Collective.

        Args:
            mean: What this rank has found, float32; None if it has taken no part.
            ranks: Those who have given `random_values`.
            session: Of all ranks.

        Raises:
            ArithmeticError: It is wrong.
        """
        checksum = _NO_MEAN
        if mean is not None:
            given = [random_values(rank, mean.numel()) for rank in ranks]
            most = max(float(one.abs().max()) for one in given) / _levels(self.compressor)
            if not bool(((mean - torch.stack(given).mean(0)).abs() <= most).all()):
                raise ArithmeticError(f"{self.name}: a mean is off by more than {most:g}")
            checksum = f"{zlib.crc32(mean.numpy().tobytes()):08x}".encode()
        if len(set(session.all_gather(checksum, "checksum of the mean")) - {_NO_MEAN}) > 1:
            raise ArithmeticError(f"{self.name}: the ranks have different means")


@final
@dataclass(frozen=True)
class Compressed(ToMeans):
    """The mean of gradients over the ranks; the size is that of all gradients.

    Attributes:
        kind: How payloads are exchanged.
    """

    kind: str
    verb: Verb = field(default="all_reduce", kw_only=True)

    def wire_bytes(self, size_bytes: int) -> int:
        """Bytes of all payloads of one rank, for so many bytes of float32."""
        compressor = COMPRESSORS[self.compressor].compressor()
        return sum(compressor.payload_bytes((elems,)) for elems in _layers(size_bytes))

    def formula_bytes(self, size_bytes: int, ranks: int) -> float:
        """Of payloads, what the exchange makes of them."""
        share = ranks - 1 if self.kind == "all_gather" else 2 * (ranks - 1) / ranks
        return share * self.wire_bytes(size_bytes)

    def needs(self, size_bytes: int, ranks: int) -> Needs:
        """What the formula says, of all ranks: what is sent is the point of it.

        Memory holds gradients, residuals, payloads, and what the first mean is compared with.
        """
        busiest_bytes = self.formula_bytes(size_bytes, ranks)
        return Needs(busiest_bytes, int(ranks * busiest_bytes), 6 * ranks * size_bytes)

    def operation(self, size_bytes: int, session: Session) -> Operation:
        """Combine random gradients, each rank's its own."""
        values = random_values(session.rank, size_bytes // 4)
        gradients = {f"layer{i}": part for i, part in enumerate(values.split(_LAYER_ELEMS))}
        exchange = {"transport": "tcp", "kind": self.kind}
        config = {"compressor": {"name": self.compressor}, "exchange": exchange}
        engine = compressa.open_engine(config, gradients)

        def call() -> None:
            engine.wait([engine.submit(gradients)])

        verify = partial(self.check, values, range(session.size), session)
        return Operation(call, verify, engine.close)


@final
@dataclass(frozen=True)
class Served(ToMeans):
    """The mean of a value over the workers of a server; the size is that of the value.

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
        """Bytes of a payload of the whole value, of so many bytes of float32."""
        return COMPRESSORS[self.compressor].compressor().payload_bytes((size_bytes // 4,))

    def formula_bytes(self, size_bytes: int, ranks: int) -> float:
        """Of payloads, what passes the busiest port one way, while as much passes the other way."""
        if not self.workers:
            return 2 * (ranks - 1) / ranks * self.wire_bytes(size_bytes)
        return max(1.0, self.workers / self.servers) * self.wire_bytes(size_bytes)

    def needs(self, size_bytes: int, ranks: int) -> Needs:
        """A payload each way for every worker, but for what stays on its host.

        Memory holds values, means, residuals, and payloads of two steps at both ends.
        """
        sent_bytes = 2 * (self.workers or ranks - 1) * self.wire_bytes(size_bytes)
        return Needs(self.formula_bytes(size_bytes, ranks), sent_bytes, 10 * ranks * size_bytes)

    def operation(self, size_bytes: int, session: Session) -> Operation:
        """Push random values, each worker's its own."""
        ranks = range(self.workers + self.servers or session.size)
        group = dist.new_group(list(ranks))
        if session.rank not in ranks:
            return Operation(nothing, partial(self.check, None, (), session))
        assert isinstance(group, dist.ProcessGroup)
        node = self._node(group, size_bytes // 4)
        values = random_values(session.rank, size_bytes // 4)
        mean = torch.empty_like(values)

        def close() -> None:
            if isinstance(node, Server):
                node.serve()
            else:
                node.close()
            dist.destroy_process_group(group)

        found = mean if isinstance(node, Worker) else None
        verify = partial(self.check, found, range(self.workers or session.size), session)
        return Operation(_call(node, values, mean), verify, close)

    def _node(self, group: dist.ProcessGroup, elems: int) -> Worker | Server:
        return open_parameter_server(
            group,
            {KEY: (elems,)},
            {"compressor": {"name": self.compressor}, "exchange": {"transport": "tcp"}},
            servers=self.servers or None,
            colocated=not self.workers,
        )


def _call(node: Worker | Server, values: torch.Tensor, mean: torch.Tensor) -> Callable[[], object]:
    if isinstance(node, Server):
        return nothing  # its threads do all of it

    def call() -> None:
        node.push(KEY, values)
        node.wait(node.pull(KEY, mean))

    return call


def _levels(compressor: str) -> int:
    """By how many times a block's largest value exceeds the error of two quantisations."""
    bits: int = getattr(COMPRESSORS[compressor].compressor, "bits", _EXACT_BITS)
    return (1 << bits - 1) - 1


def random_values(rank: int, elems: int) -> torch.Tensor:
    """Return what a rank gives, float32 of shape (elems,); other ranks know it, too."""
    return torch.randn(elems, generator=torch.Generator().manual_seed(rank))


def _layers(size_bytes: int) -> list[int]:
    """Cut so many bytes into layers of a mebibyte."""
    whole, rest = divmod(size_bytes // 4, _LAYER_ELEMS)
    return [_LAYER_ELEMS] * whole + [rest] * bool(rest)
