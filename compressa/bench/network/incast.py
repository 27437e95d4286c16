"""Workers that push to one parameter server: all at once, and in time slots.

All hosts have links of one rate, so that what the workers send together is more than the server's
port takes. Its queue fills; what finds it full is lost and sent again.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from compressa.bench.network.processes import ended, hear, started, tell
from compressa.bench.network.pushing import Rounds
from compressa.testbed import NetnsTestbed, Watch, burstiness

_FLOAT_BYTES = 4
_PATIENCE_S = 120.0
_PORT = 29_620
_EVERY_S = 0.001
_LEAST = 1  # what nothing at all counts as, where it is divided by


@dataclass(frozen=True)
class Pushes:
    """What was measured of some rounds.

    Attributes:
        rounds_s: By round, on the slowest worker.
        retransmitted: Segments that the workers have sent again.
        dropped: Packets that found the queue of the server's port full.
        peak_bytes: The most that waited in it.
        burstiness: Peak over mean of what the port carries in windows of 10 ms.
    """

    rounds_s: tuple[float, ...]
    retransmitted: int
    dropped: int
    peak_bytes: int
    burstiness: float

    @property
    def usual_s(self) -> float:
        """The mean of a round."""
        return statistics.fmean(self.rounds_s)


@dataclass(frozen=True)
class Incast:
    """What was measured.

    Attributes:
        at_once: All workers push when they can.
        in_slots: One after the other.
    """

    at_once: Pushes
    in_slots: Pushes

    @property
    def fewer_retransmitted(self) -> float:
        """How many times fewer segments are sent again in slots; none counts as one."""
        return self.at_once.retransmitted / max(self.in_slots.retransmitted, _LEAST)

    @property
    def smaller_peak(self) -> float:
        """How many times less waits at the most."""
        return self.at_once.peak_bytes / max(self.in_slots.peak_bytes, _LEAST)

    @property
    def slowdown(self) -> float:
        """What a round takes in slots, as a multiple."""
        return self.in_slots.usual_s / self.at_once.usual_s


def measure(
    bed: NetnsTestbed,
    key_bytes: int,
    keys: int = 4,
    rounds: int = 20,
    compute_s: float = 0.02,
    exchange: Mapping[str, Any] | None = None,
) -> Incast:
    """Measure the workers on all hosts but the last, and the server there.

    Args:
        bed: The hosts; their link must have a rate.
        key_bytes: Size of each key of float32, which is not compressed.
        keys: How many there are.
        rounds: How many rounds are timed, of all keys each.
        compute_s: How long a worker computes between two, a timed wait.
        exchange: Options of compressa's configuration, section exchange.

    Raises:
        TransportError: A rank failed, or took too long.
    """
    rate = bed.link.rate_bits_per_s
    assert rate is not None, "without a rate nothing is full"
    found = []
    for schedule in ({}, {"server_bits_per_s": rate}):
        config = {"exchange": dict(exchange or {}), "schedule": schedule}
        work = Rounds(key_bytes // _FLOAT_BYTES, keys, rounds, compute_s, config)
        found.append(_run(bed, work))
    return Incast(*found)


def _run(bed: NetnsTestbed, work: Rounds) -> Pushes:
    hosts = range(len(bed.hosts))
    *workers, _ = hosts
    with (
        started(bed, "pushing", hosts, [work.text()] * len(hosts), _PORT) as ranks,
        bed.queue(hosts[-1]) as port,
    ):
        asked = ranks[: len(workers)]
        hear(asked, _PATIENCE_S)
        before, sent_again = port.read(), sum(bed.retransmitted()[:-1])
        with Watch(port.read, _EVERY_S) as queue:
            tell(asked, "go")
            told = [json.loads(line) for line in hear(asked, _PATIENCE_S)]
        sent_again = sum(bed.retransmitted()[:-1]) - sent_again
        ended(ranks, _PATIENCE_S)
    rounds_s = zip(*(each["rounds_s"] for each in told), strict=True)
    readings = [reading for _, reading in queue.readings]
    return Pushes(
        tuple(max(several) for several in rounds_s),
        sent_again,
        readings[-1].dropped - before.dropped,
        max(reading.backlog_bytes for reading in readings),
        burstiness([(at_s, reading.sent_bytes) for at_s, reading in queue.readings]),
    )
