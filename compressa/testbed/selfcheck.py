"""Measures whether a testbed's links are what they are said to be.

Three sizes go around the ring of hosts, so that every link sends and receives: 64 kB shows a
bucket that is too deep, 8 MB a link that loses its rate to late timers, 170 kB both. Since a flow
passes two limits and cannot tell them apart, one host then sends to all others together, which
only its own sending side can hold to the rate, and receives from all, which only its receiving
side can. Any host that may pass its rate would make a benchmark worthless, so each is measured.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from compressa.errors import TransportError
from compressa.testbed._probing import Probes
from compressa.testbed.base import Testbed

LEAST_SHARE, GREATEST_SHARE = 0.85, 1.2
_SMALL_BYTES, _MIDDLE_BYTES, _LARGE_BYTES = 64_000, 170_000, 8_000_000
# What a host sends to, or gets from, all others together; it must fit into a port's queue.
_FAN_BYTES = 192_000
_LARGE_S = 0.8
# Below this rate all links are measured at once; above it the processors would be the limit.
_TOGETHER_BITS_PER_S = 2e8
_ATTEMPTS = 4
_PAUSE_S = 0.2
# What is shorter cannot be timed: the scheduler adds some 50 us to a message, and a paced sender
# sleeps some 200 us too long.
_SHORTEST_S = {"netns": 0.4e-3, "loopback": 4e-3}


@dataclass(frozen=True)
class Measurement:
    """One transfer, timed.

    Attributes:
        what: The hosts, as in "host 0 to host 1" or "host 2 from all".
        n_bytes: Payload.
        taken_s: Median time from first byte to last.
        share: `taken_s` over size / rate; 0 on an unshaped link.
    """

    what: str
    n_bytes: int
    taken_s: float
    share: float

    def holds(self) -> bool:
        """Whether the time is within 0.85 and 1.2 times size / rate."""
        return LEAST_SHARE <= self.share <= GREATEST_SHARE

    def __str__(self) -> str:
        """One line for a message."""
        return (
            f"{self.what}: {self.n_bytes} bytes in {self.taken_s * 1e3:.2f} ms, "
            f"{self.share:.2f} of size / rate"
        )


Measure = Callable[[], list[Measurement]]


def check_links(bed: Testbed) -> list[Measurement]:
    """Measure the link between the hosts and compare it with what it should be.

    Returns:
        Every measurement, for those who want to print them.

    Raises:
        TransportError: A transfer took less than 0.85 or more than 1.2 times its size over the
            rate, four times in a row, or did not arrive.
        StateError: The testbed is closed.
    """
    with Probes(bed) as probes:
        ring = [(i, (i + 1) % len(bed.hosts)) for i in range(len(bed.hosts))]
        probes.transfer(ring, 1000)
        if bed.link.rate_bits_per_s is None:
            return _ring(bed, probes, ring, _SMALL_BYTES)
        found: list[Measurement] = []
        for measure in _plan(bed, probes, ring):
            found += _attempt(measure, bed)
        return found


def _plan(bed: Testbed, probes: Probes, ring: Sequence[tuple[int, int]]) -> list[Measure]:
    rate = bed.link.of_connection.rate_bits_per_s or 0.0
    large_bytes = min(_LARGE_BYTES, int(rate / 8 * _LARGE_S))
    sizes = [_SMALL_BYTES, _MIDDLE_BYTES, large_bytes]
    shortest_s = _SHORTEST_S[bed.kind]
    sizes = [n for n in sizes if n <= large_bytes and bed.link.seconds_for(n) >= shortest_s]
    rings = [ring] if rate <= _TOGETHER_BITS_PER_S else [[flow] for flow in ring]
    plan: list[Measure] = [
        lambda flows=flows, n=n: _ring(bed, probes, flows, n)  # type: ignore[misc]
        for n in sizes or [large_bytes]
        for flows in rings
    ]
    # A paced sender on loopback is limited by nothing when it receives.
    if bed.kind == "netns" and len(bed.hosts) > 2:
        plan += [
            lambda i=i, outward=outward: _fan(bed, probes, i, outward=outward)  # type: ignore[misc]
            for i in range(len(bed.hosts))
            for outward in (True, False)
        ]
    return plan


def _attempt(measure: Measure, bed: Testbed) -> list[Measurement]:
    """Repeat a measurement that failed: other work on the machine may have disturbed it."""
    for attempt in range(_ATTEMPTS):
        time.sleep(attempt * _PAUSE_S)
        found = measure()
        wrong = [m for m in found if not m.holds()]
        if not wrong:
            return found
    raise TransportError(
        f"The testbed's links do not hold {bed.link} ({LEAST_SHARE} to {GREATEST_SHARE} of "
        f"size / rate is allowed): {'; '.join(map(str, wrong))}. If it is slow, end other work on "
        "this machine or choose a slower link."
    )


def _ring(
    bed: Testbed, probes: Probes, flows: Sequence[tuple[int, int]], n_bytes: int
) -> list[Measurement]:
    nominal_s = bed.link.seconds_for(n_bytes)
    runs = [probes.transfer(flows, n_bytes) for _ in range(_repeats(nominal_s))]
    medians = [
        statistics.median(end_s - begin_s for begin_s, end_s in times)
        for times in zip(*runs, strict=True)
    ]
    return [
        Measurement(
            f"host {a} to host {b}", n_bytes, taken_s, taken_s / (nominal_s or float("inf"))
        )
        for (a, b), taken_s in zip(flows, medians, strict=True)
    ]


def _fan(bed: Testbed, probes: Probes, host_index: int, *, outward: bool) -> list[Measurement]:
    others = [i for i in range(len(bed.hosts)) if i != host_index]
    flows = [(host_index, i) if outward else (i, host_index) for i in others]
    each_bytes = _FAN_BYTES // len(flows)
    nominal_s = bed.link.seconds_for(each_bytes * len(flows), connections=len(flows))
    runs = [probes.transfer(flows, each_bytes) for _ in range(_repeats(nominal_s))]
    taken_s = statistics.median(max(e for _, e in run) - min(b for b, _ in run) for run in runs)
    what = f"host {host_index} {'to' if outward else 'from'} all"
    return [Measurement(what, each_bytes * len(flows), taken_s, taken_s / nominal_s)]


def _repeats(nominal_s: float) -> int:
    if nominal_s < 0.01:
        return 7
    return 3 if nominal_s < 0.05 else 1
