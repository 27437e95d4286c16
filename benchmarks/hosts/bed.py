"""Testbeds of network namespaces, and what a plain TCP stream brings across their links."""

from __future__ import annotations

import statistics

from compressa.errors import BackendUnavailable
from compressa.testbed import NetnsTestbed, Probes, Testbed, open_testbed

_REPEATS = 3
_STREAM_S = 0.3
_STREAM_BYTES = 100_000_000  # at most, and where nothing says how long it will take


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
