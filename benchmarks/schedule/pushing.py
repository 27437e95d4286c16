"""One rank of a parameter server: the last rank is the server, all others push to it and pull."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from compressa.parameter_server import Server, open_parameter_server

_WARM_ROUNDS = 3


class Pushing:
    """What a worker, or the server, can be asked for."""

    def open(
        self, key_elems: int, keys: int, compute_s: float, schedule: Mapping[str, Any]
    ) -> None:
        """Join the others, and warm up.

        Args:
            key_elems: Elements of each key.
            keys: How many keys.
            compute_s: How long a worker computes between two rounds: a timed wait.
            schedule: Section of the configuration.
        """
        group = dist.group.WORLD
        assert group is not None
        shapes = {f"key {i}": (key_elems,) for i in range(keys)}
        config = {"schedule": schedule}
        self._node = open_parameter_server(group, shapes, config, servers=1, colocated=False)
        self._keys = list(shapes)
        self._compute_s = compute_s
        self._values = [torch.full((key_elems,), 1.0 + dist.get_rank()) for _ in shapes]
        self._out = [torch.empty(key_elems) for _ in shapes]
        for _ in range(_WARM_ROUNDS):
            self._round()

    def run(self, rounds: int) -> dict[str, Any]:
        """Tell how long rounds take, of all keys each; none of it is the server's own."""
        self._round()  # after which all workers are together
        return {"rounds_s": [self._round() for _ in range(rounds)]}

    def close(self) -> None:
        """Leave; the server waits for the workers to do so."""
        if isinstance(self._node, Server):
            self._node.serve()
        else:
            self._node.close()

    def _round(self) -> float:
        if isinstance(self._node, Server):
            return 0.0  # its threads do all of it
        begin_s = time.perf_counter()
        time.sleep(self._compute_s)
        self._node.push(self._keys, self._values)
        self._node.wait(self._node.pull(self._keys, self._out))
        return time.perf_counter() - begin_s
