"""Compressed sums: gradients through the engine, from values to means, encode and decode included.

The gradients are cut into units as in training, and all of them are under way at once.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

import torch
import torch.distributed as dist

from benchmarks.exchange.method import Method, Verb
from compressa.compressors import COMPRESSORS
from compressa.config import Config, assign, load_config
from compressa.engine import process_groups, startup
from compressa.engine.engine import Engine
from compressa.engine.lanes import Lane
from compressa.engine.session import Session
from compressa.errors import CompressaError
from compressa.link.operation import Operation
from compressa.parameters import ParameterInfo

_LAYER_ELEMS = 256 * 1024
_EXACT_BITS = 20  # of what is not quantised: float32 rounds


@final
@dataclass(frozen=True)
class Compressed(Method):
    """Bring float32 gradients to their mean over the ranks; the size is that of all gradients.

    Attributes:
        compressor: A name of the table of compressors, with its defaults and feedback.
        kind: How its payloads are exchanged.
    """

    compressor: str
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

    def floor_bytes(self, size_bytes: int, ranks: int) -> float:
        """The same: what is sent is the point of it."""
        return self.formula_bytes(size_bytes, ranks)

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
        infos = [ParameterInfo(i, f"layer{i}", part.shape) for i, part in enumerate(parts)]
        gradients = {info.name: part for info, part in zip(infos, parts, strict=True)}
        exchange = {"transport": "tcp", "kind": self.kind}
        config = load_config({"compressor": {"name": self.compressor}, "exchange": exchange})
        engine, groups = _open(config, infos)
        steps = itertools.count()

        def call() -> None:
            engine.wait([engine.submit(gradients, step=next(steps))])

        def close() -> None:
            engine.close()
            process_groups.release_groups(groups)

        def verify() -> None:
            given = [random_values(other, elems) for other in range(size)]
            mean = torch.stack(given).mean(0)
            most = max(float(one.abs().max()) for one in given) / levels(self.compressor)
            if not bool(((values - mean).abs() <= most).all()):
                raise ArithmeticError(f"{self.name}: a mean is off by more than {most:g}")
            checksum = f"{zlib.crc32(values.numpy().tobytes()):08x}".encode()
            if len(set(session.all_gather(checksum, "checksum of the mean"))) > 1:
                raise ArithmeticError(f"{self.name}: the ranks have different means")

        return Operation(call, verify, close)


def levels(compressor: str) -> int:
    """By how many times a block's largest value exceeds the error of two quantisations."""
    bits: int = getattr(COMPRESSORS[compressor].compressor, "bits", _EXACT_BITS)
    return (1 << bits - 1) - 1


def random_values(rank: int, elems: int) -> torch.Tensor:
    """Return what a rank gives, float32; other ranks know it, too."""
    return torch.randn(elems, generator=torch.Generator().manual_seed(rank))


def _open(
    config: Config, parameters: Sequence[ParameterInfo]
) -> tuple[Engine, list[dist.ProcessGroup]]:
    """Open an engine over all ranks, as registering a hook does; what it uses is to be released."""
    world, deadline_s = dist.group.WORLD, config.exchange.deadline_s
    assert world is not None
    groups = [process_groups.new_group(config, world, "gloo", "the benchmark")]
    control = startup.open_control(config, groups[0])
    startup.agree(control, startup.digest(config, None, parameters, "tcp"), deadline_s)
    groups.append(process_groups.new_group(config, world, "gloo", "the benchmark"))
    engines: list[Engine] = []

    def failed(error: CompressaError) -> None:
        for engine in engines:
            engine.fail(error)

    transport = startup.open_transport(
        config, groups[1], control, parameters, failed, "tcp", Lane()
    )
    engines.append(Engine(parameters, assign(config, parameters), config, transport, control))
    return engines[0], groups


def _layers(size_bytes: int) -> list[int]:
    """Cut so many bytes into layers of a mebibyte."""
    whole, rest = divmod(size_bytes // 4, _LAYER_ELEMS)
    return [_LAYER_ELEMS] * whole + [rest] * bool(rest)
