"""Ray's object transfer: an object that is put on the first host is got on the second.

argv: on the first host `first`, the driver's socket and this host's address; on the second host
`second`, the first host's address and this host's. It imports no torch. What is timed is the
getting; that the object was copied to Ray's memory before is not counted. The second host's node
lives as long as the first host's measurement. What a node writes goes to its own shared memory,
which ends with it.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from compressa.link.chain import Timed
from harness.wire import Wire

T = TypeVar("T")

_GCS_PORT, _LISTENING_PORT = 6379, 6380  # every host has all of its ports for itself
_RECEIVER = "receiver"
_STORE_BYTES = 1 << 30
_FOLDER = "/dev/shm/ray"
_HEAD = ["--head", "--port", str(_GCS_PORT), "--include-dashboard", "false"]
_NODES = 2
_START_S, _GET_S, _STOP_S, _PAUSE_S = 90.0, 120.0, 5.0, 0.2
_LEAST_ROUNDS = 3


class Receiver:
    """Lives on the second host."""

    def get(self, objects: list[Any]) -> tuple[float, int]:
        """Return how long it takes to have an object here, and the sum of its bytes."""
        import ray

        begin_s = time.perf_counter()
        data = ray.get(objects[0])
        return time.perf_counter() - begin_s, int(data.sum(dtype=np.int64))


class Objects:
    """What the first host can be asked for."""

    def __init__(self, receiver: Any) -> None:
        self._receiver = receiver

    def timed(self, what: str, size_bytes: int, budget_s: float, rounds: int) -> dict[str, Any]:
        """Time the getting of objects of a size; the first one warms up."""
        count = 1 + (rounds or _LEAST_ROUNDS)
        samples_s = [self._got_s(size_bytes, number) for number in range(count)]
        return Timed(samples_s[1:], count)._asdict()

    def _got_s(self, size_bytes: int, number: int) -> float:
        """Put an object of its own for each round: what is there already would not be sent."""
        import ray

        data = np.full(size_bytes, number % 256, np.uint8)
        reference = ray.put(data)
        seconds, total = ray.get(self._receiver.get.remote([reference]), timeout=_GET_S)
        if total != size_bytes * (number % 256):
            raise ArithmeticError("Ray has brought wrong bytes")
        return float(seconds)


def first(path: str, own: str) -> None:
    """Measure rows until the driver has no more."""
    import ray

    with socket.create_server((own, _LISTENING_PORT)) as listener, _node(own, _HEAD):
        address = f"{own}:{_GCS_PORT}"
        # Ray has several kinds of errors for a node that is not up yet.
        _tried(
            lambda: ray.init(address=address, _node_ip_address=own, log_to_driver=False), Exception
        )
        line, _ = listener.accept()
        with line:
            line.sendall(b"!")
            _tried(_check_nodes, TimeoutError)
            made = ray.remote(Receiver).options(num_cpus=0, resources={_RECEIVER: 1}).remote()
            Wire(path, 0).serve(ray.__version__, Objects(made))
        ray.shutdown()


def second(other: str, own: str) -> None:
    """Wait for the first host's word, run a node, and end it when that connection ends."""
    with _tried(lambda: socket.create_connection((other, _LISTENING_PORT)), OSError) as line:
        if not line.recv(1):
            return
        resources = f'{{"{_RECEIVER}": 1}}'
        with _node(own, ["--address", f"{other}:{_GCS_PORT}", "--resources", resources]):
            line.recv(1)


@contextmanager
def _node(own: str, more: Sequence[str]) -> Iterator[None]:
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


def _tried(call: Callable[[], T], failure: type[Exception]) -> T:
    """Call until it succeeds, or for too long: then its failure is raised."""
    deadline_s = time.monotonic() + _START_S
    while True:
        try:
            return call()
        except failure:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(_PAUSE_S)


def _check_nodes() -> None:
    import ray

    if sum(node["Alive"] for node in ray.nodes()) < _NODES:
        raise TimeoutError("the second host's node of Ray does not come")


if __name__ == "__main__":
    {"first": first, "second": second}[sys.argv[1]](*sys.argv[2:])
