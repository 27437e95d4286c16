"""What hosts share: a link of two jobs, and the port of a parameter server."""

from __future__ import annotations

from typing import Literal

from compressa.bench.machine import now
from compressa.bench.network import incast, shared_link
from compressa.bench.schedule.records import Jobs, Pushes
from compressa.testbed import NetnsTestbed, Testbed

Port = Literal["fifo", "fair"]

JOB_BYTES, JOB_STEPS, JOB_JITTER = 2_000_000, 20, 0.1
KEY_BYTES, KEYS, ROUNDS = 250_000, 4, 20


def two_jobs(bed: Testbed, link: str, port: Port) -> Jobs:
    """Measure two jobs on the link between two hosts.

    Args:
        bed: The hosts.
        link: What is to be between them.
        port: How connections share it; see `Jobs`. In one queue TCP favours whoever sends already,
            so that jobs push each other apart in some ten to twenty steps; with even shares they
            keep the phases in which they meet.
    """
    # Where each connection may have all of the link, each has a queue of its own.
    bed.set_link(link if port == "fifo" else f"{link} of {link}")
    found = shared_link.measure(bed, JOB_BYTES, JOB_STEPS, jitter=JOB_JITTER)
    plain, turns = found.slowdowns(found.unstaggered), found.slowdowns(found.staggered)
    return Jobs(
        link=link,
        port=port,
        size_bytes=JOB_BYTES,
        alone_s=found.alone[0].usual_s,
        communication=found.alone[0].communication,
        jitter=JOB_JITTER,
        unstaggered=tuple(job.mean for job in plain),
        staggered=tuple(job.mean for job in turns),
        medians=(tuple(job.median for job in plain), tuple(job.median for job in turns)),
        worsts=(tuple(job.worst for job in plain), tuple(job.worst for job in turns)),
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
