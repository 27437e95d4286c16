"""Workers that push to one parameter server: all at once, and in time slots.

All hosts have links of one rate, so that what the workers send together is more than the server's
port takes. Its queue fills; what finds it full is lost and sent again.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from benchmarks.schedule.hosts import PUSHING, started_ranks
from benchmarks.schedule.records import Pushes
from compressa.machine import now
from compressa.testbed import NetnsTestbed, Watch, burstiness

KEY_BYTES, KEYS, ROUNDS = 250_000, 4, 20
_COMPUTE_S = 0.02
_FLOAT_BYTES = 4
_EVERY_S = 0.001


def four_workers(bed: NetnsTestbed) -> Pushes:
    """Measure the workers on all hosts but the last, and the server there.

    Args:
        bed: The hosts; their link must have a rate.

    Raises:
        TransportError: A rank failed, or took too long.
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
    with started_ranks(bed, PUSHING) as ask, bed.queue(len(bed.hosts) - 1) as port:
        work = {"key_elems": KEY_BYTES // _FLOAT_BYTES, "keys": KEYS, "compute_s": _COMPUTE_S}
        ask("open", schedule=schedule, **work)
        sent_again = sum(bed.retransmitted()[:-1])
        with Watch(port.read, _EVERY_S) as queue:
            rounds_s = ask("run", rounds=ROUNDS)["rounds_s"]
        sent_again = sum(bed.retransmitted()[:-1]) - sent_again
        ask("close")
    return {
        "round_s": statistics.fmean(rounds_s),
        "retransmitted": sent_again,
        "peak_bytes": max(reading.backlog_bytes for _, reading in queue.readings),
        "burstiness": burstiness([(at_s, reading.sent_bytes) for at_s, reading in queue.readings]),
    }
