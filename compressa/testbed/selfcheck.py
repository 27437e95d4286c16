"""Measures whether a testbed's links are what they are said to be.

Three sizes go around the ring of hosts, so that every link sends and receives: 64 kB shows a
bucket that is too deep, 8 MB a link that loses its rate to late timers, 170 kB both. Since a flow
passes two limits and cannot tell them apart, one host then sends to all others together, which
only its own sending side can hold to the rate, and receives from all, which only its receiving
side can. Any host that may pass its rate would make a benchmark worthless, so each is measured.

Where links have a delay, the shortest of messages tell it. It is taken from the time of the others,
before each of which a longer one opens the windows of TCP: they start at 15 kB for each way there
and back, and the link would idle.
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
_ON_WIRE = 1514 / 1448  # of TCP's bytes, as the link counts them
# The delay of two messages differs by a millisecond, so they must take many more to tell the rate.
_DELAYED_SHORTEST_S = 20e-3
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
        share: `taken_s` without the link's delay over size / rate; 0 on an unshaped link. Of one
            byte on a link with a delay: `taken_s` over the delay.
        least_share: What it is at least on a link that holds its rate.
    """

    what: str
    n_bytes: int
    taken_s: float
    share: float
    least_share: float = LEAST_SHARE

    def holds(self) -> bool:
        """Whether the time is within `least_share` and 1.2 times what is due."""
        return self.least_share <= self.share <= GREATEST_SHARE

    def __str__(self) -> str:
        """One line for a message."""
        return (
            f"{self.what}: {self.n_bytes} bytes in {self.taken_s * 1e3:.2f} ms, "
            f"{self.share:.2f} of {'the delay' if self.n_bytes == 1 else 'size / rate'}"
        )


Measure = Callable[[], list[Measurement]]


def check_links(bed: Testbed) -> list[Measurement]:
    """Measure the link between the hosts and compare it with what it should be.

    Returns:
        Every measurement, for those who want to print them.

    Raises:
        TransportError: A transfer took less than 0.85 (or what a full bucket leaves of a short one)
            or more than 1.2 times its size over the rate, or the delay, four times in a row, or
            did not arrive.
        StateError: The testbed is closed.
    """
    with Probes(bed) as probes:
        ring = [(i, (i + 1) % len(bed.hosts)) for i in range(len(bed.hosts))]
        probes.transfer(ring, 1000)
        found: list[Measurement] = []
        if bed.link.delay_ms:
            found += _attempt(lambda: _delays(bed, probes, ring), bed)
        if bed.link.rate_bits_per_s is None:
            return found + _ring(bed, probes, ring, _SMALL_BYTES)
        for measure in _plan(bed, probes, ring):
            found += _attempt(measure, bed)
        return found


def _plan(bed: Testbed, probes: Probes, ring: Sequence[tuple[int, int]]) -> list[Measure]:
    rate = bed.link.of_connection.rate_bits_per_s or 0.0
    # What the bucket passes at once must be a small part of it, however slow the link.
    large_bytes = max(_SMALL_BYTES, min(_LARGE_BYTES, int(rate / 8 * _LARGE_S)))
    sizes = sorted({_SMALL_BYTES, _MIDDLE_BYTES, large_bytes})
    shortest_s = _DELAYED_SHORTEST_S if bed.link.delay_ms else _SHORTEST_S[bed.kind]
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
        f"The testbed's links do not hold {bed.link} ({wrong[0].least_share:.3g} to "
        f"{GREATEST_SHARE} of what is due is allowed): {'; '.join(map(str, wrong))}. If it is "
        "slow, end other work on this machine or choose a slower link."
    )


def _delays(bed: Testbed, probes: Probes, flows: Sequence[tuple[int, int]]) -> list[Measurement]:
    due_s = bed.link.delay_s
    medians = _medians([probes.transfer(flows, 1) for _ in range(_repeats(due_s))])
    return [
        Measurement(f"host {a} to host {b}", 1, taken_s, taken_s / due_s)
        for (a, b), taken_s in zip(flows, medians, strict=True)
    ]


def _medians(runs: Sequence[Sequence[tuple[float, float]]]) -> list[float]:
    """Seconds of each flow, from runs of all."""
    return [
        statistics.median(end_s - begin_s for begin_s, end_s in times)
        for times in zip(*runs, strict=True)
    ]


def _open_windows(
    bed: Testbed, probes: Probes, flows: Sequence[tuple[int, int]], n_bytes: int
) -> None:
    """Let TCP have under way, without waiting for an answer, what it is then measured with.

    Its window doubles each time that it was half used, until twice the link's content.
    """
    if bed.link.delay_ms:
        probes.transfer(flows, min(2 * n_bytes, 4 * bed.link.round_trip_bytes))


def _ring(
    bed: Testbed, probes: Probes, flows: Sequence[tuple[int, int]], n_bytes: int
) -> list[Measurement]:
    nominal_s = bed.link.seconds_for(n_bytes)
    _open_windows(bed, probes, flows, n_bytes)
    runs = []
    for _ in range(_repeats(nominal_s)):
        time.sleep(bed.link.seconds_for(_SMALL_BYTES))  # a deep bucket shows when it is full
        runs.append(probes.transfer(flows, n_bytes))
    medians = _medians(runs)
    shares = [(taken_s - bed.link.delay_s) / (nominal_s or float("inf")) for taken_s in medians]
    least_share = _least_share(bed, n_bytes)
    return [
        Measurement(f"host {a} to host {b}", n_bytes, taken_s, share, least_share)
        for (a, b), taken_s, share in zip(flows, medians, shares, strict=True)
    ]


def _least_share(bed: Testbed, n_bytes: int) -> float:
    """0.85, or what a full bucket leaves to the rate if that is less: 0.725 of 64 kB at 1 Gbit/s.

    That much it takes on a machine that adds nothing of its own.
    """
    if bed.kind == "loopback":  # whose senders are paced, without a bucket
        return LEAST_SHARE
    bucket = bed.link.of_connection
    at_once_bytes = bucket.burst_bytes
    if bed.link.connection_bits_per_s is not None:
        at_once_bytes += bucket.gso_max_bytes  # htb lets the packet pass that empties the bucket
    return min(LEAST_SHARE, _ON_WIRE - at_once_bytes / n_bytes)


def _fan(bed: Testbed, probes: Probes, host_index: int, *, outward: bool) -> list[Measurement]:
    others = [i for i in range(len(bed.hosts)) if i != host_index]
    flows = [(host_index, i) if outward else (i, host_index) for i in others]
    all_bytes = _FAN_BYTES
    if bed.link.delay_ms:
        all_bytes = max(all_bytes, int((bed.link.rate_bits_per_s or 0.0) / 8 * _DELAYED_SHORTEST_S))
    each_bytes = all_bytes // len(flows)
    _open_windows(bed, probes, flows, each_bytes)
    nominal_s = bed.link.seconds_for(each_bytes * len(flows), connections=len(flows))
    runs = [probes.transfer(flows, each_bytes) for _ in range(_repeats(nominal_s))]
    taken_s = statistics.median(max(e for _, e in run) - min(b for b, _ in run) for run in runs)
    what = f"host {host_index} {'to' if outward else 'from'} all"
    share = (taken_s - bed.link.delay_s) / nominal_s
    return [Measurement(what, each_bytes * len(flows), taken_s, share)]


def _repeats(nominal_s: float) -> int:
    if nominal_s < 0.01:
        return 7
    return 3 if nominal_s < 0.05 else 1
