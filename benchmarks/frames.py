"""What it costs to check frames: the same steps with and without, in turn, in one run.

    torchrun --nproc-per-node 2 -m benchmarks.frames

Without, nobody computes a checksum or compares one; all else is the same. A perceptron of 4.2
million parameters. Where ranks are on hosts of their own, torchrun's variables say so as always.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch.distributed as dist
from compressa.kernels.checksums import checksum_of_memory

from benchmarks.paired import Overhead, compared, perceptron, report
from compressa.transports import checks, frames

COMPRESSORS = ("none", "int8", "topk", "powersgd")
_LAYERS = 4
_PAIRS = 20
_SECRET = "known to everybody who reads this"


class _Unlike(int):
    """A checksum that no comparison finds wrong, as the other end may send none."""

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = int.__hash__


class Switch:
    """Turns the checksums of this process's frames on and off.

    Attributes:
        on: Whether they are computed.
    """

    def __init__(self) -> None:
        self.on = True
        self._computed, self._none = checksum_of_memory, _Unlike(0)

    def turn(self, on: bool) -> None:
        """Turn them on or off."""
        self.on = on

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Have frames ask this switch."""
        with (
            mock.patch.object(checks, "checksum_of_memory", self._checksum),
            mock.patch.object(frames, "checksum_of_memory", self._checksum),
        ):
            yield

    def _checksum(self, data: memoryview) -> int:
        return _Unlike(self._computed(data)) if self.on else self._none


def measured(exchange: Mapping[str, Any], compressor: str, pairs: int = _PAIRS) -> Overhead:
    """Return what checksums add to a step.

    Args:
        exchange: Settings of a section; a model without MACs is trained beside one that has them,
            if these say so.
        compressor: Its name.
        pairs: How often to compare times.
    """
    switch = Switch()
    with switch.installed():
        off = perceptron(_settings({}, compressor), _LAYERS)
        keyed = bool(exchange.get("authenticate"))
        on = perceptron(_settings(exchange, compressor), _LAYERS) if keyed else off
        return compared(off, on, switch.turn, pairs=pairs)


def _settings(exchange: Mapping[str, Any], compressor: str) -> dict[str, Any]:
    # Sums by the backend would have no frames of ours.
    options = {"algorithm": "ring"} if compressor == "none" else {}
    return {"compressor": compressor, "exchange": {**options, **exchange}}


@contextmanager
def _secret() -> Iterator[Path]:
    """Write a secret to where all ranks of the job look for it; they share a file system."""
    path = Path(tempfile.gettempdir()) / f"compressa-bench-frames-{os.environ['MASTER_PORT']}"
    first = dist.get_rank() == 0
    if first:
        path.touch(mode=0o600)
        path.write_text(_SECRET, encoding="utf-8")
    dist.barrier()
    try:
        yield path
    finally:
        dist.barrier()
        if first:
            path.unlink()


def lines() -> Iterator[str]:
    """Measure each compressor, and say what was found."""
    with _secret() as secret:
        keyed = {"authenticate": True, "secret_file": str(secret)}
        for compressor in COMPRESSORS:
            for what, exchange in {"checksums": {}, "MACs": keyed}.items():
                found = measured(exchange, compressor)
                yield (
                    f"{compressor}: step without checks {1e3 * found.off_s:.1f} ms; with {what} "
                    f"{found.text}"
                )


if __name__ == "__main__":
    report(lines())
