"""Nodes of Ray: on the second host one that lives as long as the first host's measurement.

argv: the first host's address, this host's address. It imports no torch. What a
node writes goes to its own shared memory, which ends with it.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

GCS_PORT, DOOR_PORT = 6379, 6380  # every host has all of its ports for itself
RECEIVER = "receiver"
_STORE_BYTES = 1 << 30
_FOLDER = "/dev/shm/ray"
_START_S, _STOP_S, _PAUSE_S = 60.0, 5.0, 0.1


@contextmanager
def node(own: str, more: Sequence[str]) -> Iterator[None]:
    """Have a node of Ray run on this host.

    Args:
        own: This host's address.
        more: Words for `ray start`.
    """
    words = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block"]
    words += ["--node-ip-address", own, "--temp-dir", _FOLDER, "--num-cpus", "1"]
    words += ["--object-store-memory", str(_STORE_BYTES), "--disable-usage-stats"]
    process = subprocess.Popen([*words, *more], stdin=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def main(first: str, own: str) -> None:
    """Wait for the first host's word, run a node, and end it when that connection ends."""
    with _connected(first) as line:
        if not line.recv(1):
            return
        resources = f'{{"{RECEIVER}": 1}}'
        with node(own, ["--address", f"{first}:{GCS_PORT}", "--resources", resources]):
            line.recv(1)


def _connected(first: str) -> socket.socket:
    deadline_s = time.monotonic() + _START_S
    while True:
        try:
            return socket.create_connection((first, DOOR_PORT))
        except OSError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(_PAUSE_S)


if __name__ == "__main__":
    main(*sys.argv[1:])
