"""Starts ranks on a testbed's hosts."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from compressa.testbed import Testbed
from harness.ranks import Ranks, Started

THREADS = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_START_S = 180.0  # eight processes import torch on two cores


def started_ranks(
    bed: Testbed,
    served: str,
    *options: str,
    deadline_s: float = 180.0,
    env: Mapping[str, str] | None = None,
) -> Ranks:
    """Start a rank on every host, each with one thread; it can import what this process can.

    Args:
        bed: Where.
        served: What ranks can be asked for, as `harness.rank` takes it; likewise `options`.
        options: See there.
        deadline_s: How long anything may take where nothing else is said, waits of ranks included.
        env: What else the environment holds.
    """

    def start(path: Path) -> list[Started]:
        meeting = {
            "WORLD_SIZE": str(len(bed.hosts)),
            "MASTER_ADDR": bed.hosts[0].address,
            "MASTER_PORT": str(_free_port()),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        words = [sys.executable, "-m", "harness.rank", str(path), served, str(deadline_s), *options]
        started = []
        for rank in range(len(bed.hosts)):
            log = path.with_name(f"rank{rank}.log")
            own = {"RANK": str(rank), **meeting, **THREADS, **(env or {})}
            started.append(Started(f"rank {rank}", spawn(bed, rank, words, own, log), log))
        return started

    return Ranks(len(bed.hosts), start, _START_S, deadline_s)


def spawn(
    bed: Testbed,
    host: int,
    words: Sequence[str],
    env: Mapping[str, str],
    log: Path,
    *,
    isolate: bool = False,
) -> subprocess.Popen[Any]:
    """Start a process on a host that reads nothing and writes to a file.

    Args:
        bed: The hosts.
        host: Which of them.
        words: The command.
        env: What the environment holds besides this process's own.
        log: Where it writes; replaced.
        isolate: See `Testbed.spawn`.
    """
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
