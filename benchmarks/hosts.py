"""Hosts: testbeds, what a plain TCP stream brings across their links, how busy the machine is."""

from __future__ import annotations

import statistics
from pathlib import Path

from compressa.errors import BackendUnavailable
from compressa.testbed import NetnsTestbed, Probes, Testbed, open_testbed

_REPEATS = 3
_STREAM_S = 0.3
_STREAM_BYTES = 100_000_000  # at most, and where nothing says how long it will take

_STAT = Path("/proc/stat")
_IDLE = slice(3, 5)  # idle, and waiting for a disk
_COUNTED = 8  # what guests use is counted in these already


def opened_hosts(hosts: int, link: str) -> NetnsTestbed:
    """Open a testbed whose links are not checked yet.

    Args:
        hosts: How many.
        link: Speed of their links, as `LinkSpec` writes it.

    Raises:
        BackendUnavailable: There are no network namespaces here; the message says why.
    """
    try:
        bed = open_testbed(hosts, link, kind="netns", self_check=False)
    except BackendUnavailable as refusal:
        raise BackendUnavailable(
            f"this benchmark measures between network namespaces only. {refusal}"
        ) from refusal
    assert isinstance(bed, NetnsTestbed)
    return bed


def line_rate(bed: Testbed) -> float:
    """Return the bytes per second of one plain TCP stream from the first host to the second."""
    rate = bed.link.rate_bits_per_s
    n_bytes = _STREAM_BYTES if rate is None else min(_STREAM_BYTES, int(rate / 8 * _STREAM_S))
    with Probes(bed) as probes:
        probes.transfer([(0, 1)], n_bytes)  # opens the window
        runs = [probes.transfer([(0, 1)], n_bytes)[0] for _ in range(_REPEATS)]
    return n_bytes / statistics.median(end_s - begin_s for begin_s, end_s in runs)


class Processors:
    """Measures the share of time in which the machine's processors work, for whomever."""

    def __init__(self) -> None:
        self._before = _ticks()

    def load(self) -> float:
        """Return the share since this was made: 1 if all of them were busy all the time."""
        busy, total = (now - then for now, then in zip(_ticks(), self._before, strict=True))
        return busy / total if total else 0.0


def _ticks() -> tuple[int, int]:
    """Return busy and all ticks of all processors since the machine started."""
    first = _STAT.read_text(encoding="ascii").partition("\n")[0]
    ticks = [int(word) for word in first.split()[1 : 1 + _COUNTED]]
    return sum(ticks) - sum(ticks[_IDLE]), sum(ticks)
