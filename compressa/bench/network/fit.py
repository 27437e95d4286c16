"""What a link is like: its line rate, and the parameters of the cost model."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from compressa.bench.network.methods import ADD, HOP, HOPS
from compressa.bench.network.records import Network
from compressa.bench.network.wire import Ask
from compressa.testbed import Testbed
from compressa.testbed._probing import Probes

_REPEATS = 3
_STREAM_S = 0.3
_STREAM_BYTES = 100_000_000  # at most, and where nothing says how long it will take
_SMALL_BYTES = 1024
_LARGE_S = 0.1
_LEAST_LARGE_BYTES, MOST_BYTES = 1 << 20, 16 << 20
_ADD_BYTES = 4 << 20

Measure = Callable[[Ask], tuple[list[float], int]]


def line_rate(bed: Testbed) -> float:
    """Return the bytes per second of one plain TCP stream from the first host to the second."""
    rate = bed.link.rate_bits_per_s
    n_bytes = _STREAM_BYTES if rate is None else min(_STREAM_BYTES, int(rate / 8 * _STREAM_S))
    with Probes(bed) as probes:
        probes.transfer([(0, 1)], n_bytes)  # opens the window
        runs = [probes.transfer([(0, 1)], n_bytes)[0] for _ in range(_REPEATS)]
    return n_bytes / statistics.median(end_s - begin_s for begin_s, end_s in runs)


def fitted(bed: Testbed, line_bytes_per_s: float, budget_s: float, measure: Measure) -> Network:
    """Fit the cost model to what ranks measure on these links.

    Args:
        bed: The hosts.
        line_bytes_per_s: Their line rate.
        budget_s: Seconds for each of three rows.
        measure: Has the ranks measure.
    """

    def median_s(what: str, size_bytes: int) -> float:
        return statistics.median(measure(Ask(what, size_bytes, budget_s))[0])

    large_bytes = min(int(line_bytes_per_s * _LARGE_S), MOST_BYTES)
    large_bytes = max(large_bytes, _LEAST_LARGE_BYTES)
    small_s, large_s = (median_s(HOP, size) / HOPS for size in (_SMALL_BYTES, large_bytes))
    message_s, byte_s = line_through((_SMALL_BYTES, small_s), (large_bytes, large_s))
    return Network(
        hosts=len(bed.hosts),
        link=str(bed.link),
        rate_bits_per_s=bed.link.rate_bits_per_s,
        line_bytes_per_s=line_bytes_per_s,
        message_s=message_s,
        byte_s=byte_s,
        reduce_s=median_s(ADD, _ADD_BYTES) / _ADD_BYTES,
    )


def line_through(small: tuple[int, float], large: tuple[int, float]) -> tuple[float, float]:
    """Return the seconds of a message and of a byte, from the times of two sizes.

    Example:
        >>> line_through((1000, 0.002), (2000, 0.003))
        (0.001, 1e-06)
    """
    (small_bytes, small_s), (large_bytes, large_s) = small, large
    byte_s = (large_s - small_s) / (large_bytes - small_bytes)
    return max(0.0, round(small_s - small_bytes * byte_s, 12)), byte_s
