"""Starts ranks of a benchmark on a testbed's hosts."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.hosts.ranks import Started
from compressa.testbed import Testbed

HOME = Path(__file__).resolve().parents[2]
"""Where the benchmarks are imported from."""

THREADS = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def start_each(
    bed: Testbed, words: Sequence[object], path: Path, env: Mapping[str, str] | None = None
) -> list[Started]:
    """Start a rank on every host, each with one thread.

    Args:
        bed: Where.
        words: The module that each runs, and its arguments but for the first, which is the socket;
            the environment tells it who it is, as torchrun's does.
        path: The driver's socket; logs stand beside it.
        env: What else the environment holds.
    """
    meeting = {
        "WORLD_SIZE": str(len(bed.hosts)),
        "MASTER_ADDR": bed.hosts[0].address,
        "MASTER_PORT": str(_free_port()),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(HOME), os.environ.get("PYTHONPATH")])),
    }
    module, *more = map(str, words)
    command = [sys.executable, "-m", module, str(path), *more]
    started = []
    for rank in range(len(bed.hosts)):
        log = path.with_name(f"rank{rank}.log")
        own = {"RANK": str(rank), **meeting, **THREADS, **(env or {})}
        started.append(Started(f"rank {rank}", spawn(bed, rank, command, own, log), log))
    return started


def spawn(
    bed: Testbed,
    host: int,
    words: Sequence[str],
    env: Mapping[str, str],
    log: Path,
    *,
    isolate: bool = False,
) -> subprocess.Popen[Any]:
    """Start a process on a host that reads nothing and writes to a file."""
    with log.open("wb") as stream:
        return bed.spawn(
            host,
            words,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            isolate=isolate,
        )


def _free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port
