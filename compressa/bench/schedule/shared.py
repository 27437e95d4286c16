"""What hosts share: a link of two jobs, and the port of a parameter server."""

from __future__ import annotations

from compressa.bench.machine import now
from compressa.bench.network import incast, shared_link
from compressa.bench.schedule.records import Jobs, Pushes
from compressa.testbed import NetnsTestbed, Testbed

JOB_BYTES, JOB_STEPS = 2_000_000, 15
KEY_BYTES, KEYS, ROUNDS = 250_000, 4, 20


def two_jobs(bed: Testbed) -> Jobs:
    """Measure two jobs on the link between two hosts."""
    found = shared_link.measure(bed, JOB_BYTES, JOB_STEPS)
    return Jobs(
        link=str(bed.link),
        size_bytes=JOB_BYTES,
        alone_s=found.alone.usual_s,
        unstaggered=tuple(found.slowdowns(found.unstaggered)),
        staggered=tuple(found.slowdowns(found.staggered)),
        burstiness=found.burstiness,
        timestamp=now(),
    )


def four_workers(bed: NetnsTestbed) -> Pushes:
    """Measure four workers and one server, each on a host."""
    found = incast.measure(bed, KEY_BYTES, KEYS, ROUNDS)
    both = found.at_once, found.in_slots
    return Pushes(
        link=str(bed.link),
        size_bytes=KEY_BYTES * KEYS,
        round_s=(both[0].usual_s, both[1].usual_s),
        retransmitted=(both[0].retransmitted, both[1].retransmitted),
        peak_bytes=(both[0].peak_bytes, both[1].peak_bytes),
        burstiness=(both[0].burstiness, both[1].burstiness),
        timestamp=now(),
    )
