"""Processes of a benchmark on hosts of a testbed, which say lines and hear lines."""

from __future__ import annotations

import selectors
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from compressa.errors import TransportError
from compressa.testbed import Testbed

Process = subprocess.Popen[Any]


@contextmanager
def started(
    bed: Testbed, module: str, hosts: Sequence[int], texts: Sequence[str], port: int
) -> Iterator[list[Process]]:
    """Start ranks that meet each other; they are ended afterwards.

    Args:
        bed: The testbed.
        module: What each runs, in `compressa.bench.network`.
        hosts: By rank, where.
        texts: By rank, its argument.
        port: Where they meet on the first one's host.
    """
    ranks: list[Process] = []
    meeting = {
        "WORLD_SIZE": str(len(hosts)),
        "MASTER_ADDR": bed.hosts[hosts[0]].address,
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }
    try:
        for rank, (host, text) in enumerate(zip(hosts, texts, strict=True)):
            words = [sys.executable, "-m", f"compressa.bench.network.{module}", text]
            env = {"RANK": str(rank), **meeting}
            pipe = subprocess.PIPE
            ranks.append(bed.spawn(host, words, env=env, stdin=pipe, stdout=pipe, text=True))
        yield ranks
    finally:
        for process in ranks:
            bed.end(process)


def tell(processes: Sequence[Process], line: str) -> None:
    """Say a line to each."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(line + "\n")
        process.stdin.flush()


def hear(processes: Sequence[Process], patience_s: float) -> list[str]:
    """Hear the next line of each.

    Raises:
        TransportError: One has ended, or says nothing in time.
    """
    end_s = time.monotonic() + patience_s
    return [_line(process, end_s) for process in processes]


def _line(process: Process, end_s: float) -> str:
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        # A process says one line at a time, so that none waits in the buffer.
        if not selector.select(max(0.0, end_s - time.monotonic())):
            raise TransportError("a rank of a benchmark says nothing; see what it wrote above")
    line = str(process.stdout.readline())
    if not line:
        raise TransportError("a rank of a benchmark has ended; see what it wrote above")
    return line


def ended(processes: Sequence[Process], patience_s: float) -> None:
    """Wait for their ends.

    Raises:
        TransportError: One goes on for longer, or has failed.
    """
    end_s = time.monotonic() + patience_s
    for process in processes:
        try:
            status = process.wait(max(0.0, end_s - time.monotonic()))
        except subprocess.TimeoutExpired as error:
            raise TransportError("a rank of a benchmark does not end") from error
        if status:
            raise TransportError(f"a rank of a benchmark ended with status {status}")
