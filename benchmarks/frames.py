"""What it costs to check frames: the same steps with and without, in turn, in one run.

    torchrun --nproc-per-node 2 -m benchmarks.frames

Without, a model's frames go by a transport whose data nobody checks: that is a row of the table of
transports which only this process knows. Headers bear their checksums either way, 40 bytes each. A
perceptron of 4.2 million parameters. Where ranks are on hosts of their own, torchrun's variables
say so as always.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch.distributed as dist

from benchmarks.paired import Overhead, compared, perceptron, report
from compressa.transports.base import Transport
from compressa.transports.checks import Check, Keys
from compressa.transports.setup import Setup
from compressa.transports.table import TRANSPORTS, USUAL
from compressa.transports.tcp import open_tcp

COMPRESSORS = ("none", "int8", "topk", "powersgd")
UNCHECKED = f"{USUAL}-unchecked"
_LAYERS = 4
_PAIRS = 20
_SECRET = "known to everybody who reads this"


class Unchecked:
    """One end of a stream that lets all data pass; a `compressa.transports.checks.Check`."""

    wrong: ClassVar[str] = "never is"

    def of(self, front: memoryview, data: memoryview) -> int:
        """Return what the header says of any data."""
        return 0

    def take_back(self, frames: int) -> None:
        """Nothing was counted."""


class NoKeys(Keys):
    """Keys of streams that nobody checks."""

    def to(self, peer: int, number: int = 0) -> Check:
        """Return what checks nothing."""
        return Unchecked()

    def coming_from(self, peer: int, number: int = 0) -> Check:
        """Return what checks nothing."""
        return Unchecked()


def open_unchecked(setup: Setup) -> Transport:
    """Open the usual transport without checks of data; see `Entry.open`."""
    return open_tcp(replace(setup, settings=replace(setup.settings, keys=NoKeys())))


def measured(exchange: Mapping[str, Any], compressor: str, pairs: int = _PAIRS) -> Overhead:
    """Return what checks of frames add to a step. Collective.

    Args:
        exchange: Settings of a section, which say whether there are MACs.
        compressor: Its name.
        pairs: How often to compare times.
    """
    opener = f"{__name__}:{open_unchecked.__name__}"
    TRANSPORTS[UNCHECKED] = replace(TRANSPORTS[USUAL], name=UNCHECKED, opener=opener)
    try:
        off = perceptron(_settings({"transport": UNCHECKED}, compressor), _LAYERS)
        on = perceptron(_settings({"transport": USUAL, **exchange}, compressor), _LAYERS)
        return compared(off, on, pairs=pairs)
    finally:
        del TRANSPORTS[UNCHECKED]


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
