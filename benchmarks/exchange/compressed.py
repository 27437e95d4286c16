"""Compressed sums: gradients through the engine, from values to means, encode and decode included.

The gradients are cut into units as in training, and all of them are under way at once.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

import torch

import compressa
from benchmarks.exchange.method import Method, Verb
from compressa.compressors import COMPRESSORS
from compressa.engine.session import Session
from compressa.link.operations import Operation

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

    def floor_bytes(self, size_bytes: int, ranks: int) -> float:
        """What the formula says: what is sent is the point of it."""
        return self.formula_bytes(size_bytes, ranks)


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
        """Bytes of all payloads of one rank."""
        compressor = COMPRESSORS[self.compressor].compressor()
        return sum(compressor.payload_bytes((elems,)) for elems in _layers(size_bytes))

    def formula_bytes(self, size_bytes: int, ranks: int) -> float:
        """Of payloads, what the exchange makes of them."""
        share = ranks - 1 if self.kind == "all_gather" else 2 * (ranks - 1) / ranks
        return share * self.wire_bytes(size_bytes)

    def sent_bytes(self, size_bytes: int, ranks: int) -> int:
        """From all ranks."""
        return int(ranks * self.formula_bytes(size_bytes, ranks))

    def memory_bytes(self, size_bytes: int, ranks: int) -> int:
        """Gradients, residuals, payloads, and what the first mean is compared with."""
        return 6 * ranks * size_bytes

    def operation(self, size_bytes: int, session: Session) -> Operation:
        """Combine random gradients, each rank's its own."""
        elems, rank, size = size_bytes // 4, session.rank, session.size
        values = random_values(rank, elems)
        parts = values.split(_LAYER_ELEMS)
        gradients = {f"layer{i}": part for i, part in enumerate(parts)}
        exchange = {"transport": "tcp", "kind": self.kind}
        config = {"compressor": {"name": self.compressor}, "exchange": exchange}
        engine = compressa.open_engine(config, gradients)

        def call() -> None:
            engine.wait([engine.submit(gradients)])

        def verify() -> None:
            given = [random_values(other, elems) for other in range(size)]
            check_mean(self.name, self.compressor, values, given, session)

        return Operation(call, verify, engine.close)


def check_mean(
    name: str,
    compressor: str,
    mean: torch.Tensor | None,
    given: Sequence[torch.Tensor],
    session: Session,
) -> None:
    """Compare a mean with the true one, and with that of the other ranks; all must call this.

    Args:
        name: Of the method.
        compressor: What was compressed by.
        mean: What this rank has found; None if it has taken no part.
        given: What those who took part have given.
        session: Of all ranks.

    Raises:
        ArithmeticError: It is wrong.
    """
    checksum = _NO_MEAN
    if mean is not None:
        most = max(float(one.abs().max()) for one in given) / _levels(compressor)
        if not bool(((mean - torch.stack(list(given)).mean(0)).abs() <= most).all()):
            raise ArithmeticError(f"{name}: a mean is off by more than {most:g}")
        checksum = f"{zlib.crc32(mean.numpy().tobytes()):08x}".encode()
    if len(set(session.all_gather(checksum, "checksum of the mean")) - {_NO_MEAN}) > 1:
        raise ArithmeticError(f"{name}: the ranks have different means")


def _levels(compressor: str) -> int:
    """By how many times a block's largest value exceeds the error of two quantisations."""
    bits: int = getattr(COMPRESSORS[compressor].compressor, "bits", _EXACT_BITS)
    return (1 << bits - 1) - 1


def random_values(rank: int, elems: int) -> torch.Tensor:
    """Return what a rank gives, float32; other ranks know it, too."""
    return torch.randn(elems, generator=torch.Generator().manual_seed(rank))


def _layers(size_bytes: int) -> list[int]:
    """Cut so many bytes into layers of a mebibyte."""
    whole, rest = divmod(size_bytes // 4, _LAYER_ELEMS)
    return [_LAYER_ELEMS] * whole + [rest] * bool(rest)
