"""Workers that push to one parameter server: all at once, and in time slots.

All hosts have links of one rate, so that what the workers send together is more than the server's
port takes. Its queue fills; what finds it full is lost and sent again.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.schedule.records import Pushes
from compressa.machine import now
from compressa.parameter_server import Server, open_parameter_server
from compressa.testbed import NetnsTestbed, Watch, burstiness
from harness.start import started_ranks
from harness.wire import Wire

KEY_BYTES, KEYS, ROUNDS = 250_000, 4, 20
_COMPUTE_S = 0.02  # between two rounds of a worker: a timed wait
_FLOAT_BYTES = 4
_EVERY_S = 0.001
_WARM_ROUNDS = 3


class Pushing:
    """What a worker can be asked for, or the server, which is the last rank."""

    def __init__(self, wire: Wire) -> None:
        elems = KEY_BYTES // _FLOAT_BYTES
        self._keys = [f"key {i}" for i in range(KEYS)]
        self._values = [torch.full((elems,), 1.0 + dist.get_rank()) for _ in self._keys]
        self._out = [torch.empty(elems) for _ in self._keys]

    def open(self, schedule: Mapping[str, Any]) -> None:
        """Join the others, and warm up.

        Args:
            schedule: Section of the configuration.
        """
        group = dist.group.WORLD
        assert group is not None
        shapes = {key: out.shape for key, out in zip(self._keys, self._out, strict=True)}
        config = {"schedule": schedule}
        self._node = open_parameter_server(group, shapes, config, servers=1, colocated=False)
        for _ in range(_WARM_ROUNDS):
            self._round()
        gc.collect()  # of all that was imported: within a round it would take 0.3 s

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
        time.sleep(_COMPUTE_S)
        self._node.push(self._keys, self._values)
        self._node.wait(self._node.pull(self._keys, self._out))
        return time.perf_counter() - begin_s


def four_workers(bed: NetnsTestbed) -> Pushes:
    """Measure the workers on all hosts but the last, and the server there.

    Args:
        bed: The hosts; their link must have a rate.

    Raises:
        RankError: A rank failed, or took too long.
    """
    rate = bed.link.rate_bits_per_s
    assert rate is not None, "without a rate nothing is full"
    at_once, in_slots = (_run(bed, schedule) for schedule in ({}, {"server_bits_per_s": rate}))
    return Pushes(
        link=str(bed.link),
        size_bytes=KEY_BYTES * KEYS,
        **{name: (at_once[name], in_slots[name]) for name in at_once},
        timestamp=now(),
    )


def _run(bed: NetnsTestbed, schedule: Mapping[str, float]) -> dict[str, Any]:
    """Return what a row has of one of the two ways."""
    with (
        started_ranks(bed, f"{__name__}:Pushing") as ranks,
        bed.queue(len(bed.hosts) - 1) as port,
    ):
        ranks.ask("open", schedule=schedule)
        sent_again = sum(bed.retransmitted()[:-1])
        with Watch(port.read, _EVERY_S) as queue:
            rounds_s = ranks.ask("run", rounds=ROUNDS)["rounds_s"]
        sent_again = sum(bed.retransmitted()[:-1]) - sent_again
        ranks.ask("close")
    return {
        "round_s": statistics.fmean(rounds_s),
        "retransmitted": sent_again,
        "peak_bytes": max(reading.backlog_bytes for _, reading in queue.readings),
        "burstiness": burstiness([(at_s, reading.sent_bytes) for at_s, reading in queue.readings]),
    }
