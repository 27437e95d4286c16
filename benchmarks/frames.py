"""What MACs cost: the same steps with checksums and with MACs, in turn, in one run.

    torchrun --nproc-per-node 2 -m benchmarks.frames

A perceptron of 4.2 million parameters. Where ranks are on hosts of their own, torchrun's variables
say so as always.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed as dist

from benchmarks.paired import Overhead, compared, perceptron, report

COMPRESSORS = ("none", "int8", "topk", "powersgd")
_LAYERS = 4
_PAIRS = 20
_SECRET = "known to everybody who reads this"


def measured(keyed: Mapping[str, Any], compressor: str, pairs: int = _PAIRS) -> Overhead:
    """Return what MACs add to a step. Collective.

    Args:
        keyed: Settings of `exchange` with which frames have MACs.
        compressor: Its name.
        pairs: How often to compare times.
    """
    off, on = (
        perceptron({"compressor": compressor, "exchange": exchange}, _LAYERS)
        for exchange in ({}, keyed)
    )
    return compared(off, on, pairs=pairs)


@contextmanager
def keyed(path: Path) -> Iterator[dict[str, Any]]:
    """Have a secret in a file, while settings of `exchange` name it. Collective.

    Args:
        path: A file that there is not yet, the same on every rank; they share a file system.
    """
    first = dist.get_rank() == 0
    if first:
        path.touch(mode=0o600)
        path.write_text(_SECRET, encoding="utf-8")
    dist.barrier()
    try:
        yield {"authenticate": True, "secret_file": str(path)}
    finally:
        dist.barrier()
        if first:
            path.unlink()


def lines() -> Iterator[str]:
    """Measure each compressor, and say what was found."""
    path = Path(tempfile.gettempdir()) / f"compressa-bench-frames-{os.environ['MASTER_PORT']}"
    with keyed(path) as settings:
        for compressor in COMPRESSORS:
            found = measured(settings, compressor)
            yield (
                f"{compressor}: step with checksums {1e3 * found.off_s:.1f} ms; with MACs "
                f"{found.text}"
            )


if __name__ == "__main__":
    report(lines())
