"""The line rate of a link: what a plain TCP stream brings across it."""

from __future__ import annotations

import statistics

from compressa.testbed import Probes, Testbed

_REPEATS = 3
_STREAM_S = 0.3
_STREAM_BYTES = 100_000_000  # at most, and where nothing says how long it will take


def line_rate(bed: Testbed) -> float:
    """Return the bytes per second of one plain TCP stream from the first host to the second."""
    rate = bed.link.rate_bits_per_s
    n_bytes = _STREAM_BYTES if rate is None else min(_STREAM_BYTES, int(rate / 8 * _STREAM_S))
    with Probes(bed) as probes:
        probes.transfer([(0, 1)], n_bytes)  # opens the window
        runs = [probes.transfer([(0, 1)], n_bytes)[0] for _ in range(_REPEATS)]
    return n_bytes / statistics.median(end_s - begin_s for begin_s, end_s in runs)
