"""Ray's object transfer: an object that is put on the first host is got on the second.

argv: the driver's socket, this host's address. It imports no torch. What is
timed is the getting; that the object was copied to Ray's memory before is not counted.
"""

from __future__ import annotations

import socket
import sys
import time
from typing import Any

import numpy as np

from benchmarks.exchange.ray_node import DOOR_PORT, GCS_PORT, RECEIVER, node
from benchmarks.hosts.wire import Wire
from compressa.link.chain import Ask, Timed

_NODES = 2
_START_S, _GET_S, _PAUSE_S = 90.0, 120.0, 0.2
_LEAST_ROUNDS = 3


class Receiver:
    """Lives on the second host."""

    def get(self, objects: list[Any]) -> tuple[float, int]:
        """Return how long it takes to have an object here, and the sum of its bytes."""
        import ray

        begin_s = time.perf_counter()
        data = ray.get(objects[0])
        return time.perf_counter() - begin_s, int(data.sum(dtype=np.int64))


def main(path: str, own: str) -> None:
    """Measure rows until the driver has no more."""
    import ray

    with socket.create_server((own, DOOR_PORT)) as door, node(own, ["--head", *_HEAD]):
        _initialise(f"{own}:{GCS_PORT}", own)
        line, _ = door.accept()
        with line:
            line.sendall(b"!")
            _wait_for_nodes()
            receiver = ray.remote(Receiver).options(num_cpus=0, resources={RECEIVER: 1}).remote()

            def answer(message: Any) -> dict[str, Any]:
                ask = Ask(*message)
                rounds = ask.rounds or _LEAST_ROUNDS
                samples_s = [_got_s(receiver, ask.size_bytes, i) for i in range(1 + rounds)]
                return Timed(samples_s[1:], 1 + rounds)._asdict()

            Wire(path, 0).serve(ray.__version__, answer)
        ray.shutdown()


_HEAD = ["--port", str(GCS_PORT), "--include-dashboard", "false"]


def _initialise(address: str, own: str) -> None:
    """Connect to this host's node, as soon as it is up."""
    import ray

    deadline_s = time.monotonic() + _START_S
    while True:
        try:
            ray.init(address=address, _node_ip_address=own, log_to_driver=False)
        except Exception:  # Ray has several kinds of it
            if time.monotonic() > deadline_s:
                raise
            time.sleep(_PAUSE_S)
        else:
            return


def _wait_for_nodes() -> None:
    import ray

    deadline_s = time.monotonic() + _START_S
    while sum(node["Alive"] for node in ray.nodes()) < _NODES:
        if time.monotonic() > deadline_s:
            raise TimeoutError("the second host's node of Ray does not come")
        time.sleep(_PAUSE_S)


def _got_s(receiver: Any, size_bytes: int, number: int) -> float:
    """Put an object of its own for each round: what is there already would not be sent."""
    import ray

    data = np.full(size_bytes, number % 256, np.uint8)
    reference = ray.put(data)
    seconds, total = ray.get(receiver.get.remote([reference]), timeout=_GET_S)
    if total != size_bytes * (number % 256):
        raise ArithmeticError("Ray has brought wrong bytes")
    return float(seconds)


if __name__ == "__main__":
    main(*sys.argv[1:])
