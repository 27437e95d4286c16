"""Sizes and times as people write them."""

from __future__ import annotations

from compressa.engine.start.link_file import MOST_SPREAD


def size_text(size_bytes: int) -> str:
    """Return a size with the largest unit that leaves a whole number, or one digit of megabytes.

    Example:
        >>> size_text(8192), size_text(100_000_000), size_text(1 << 20), size_text(1500)
        ('8 KiB', '100 MB', '1 MiB', '1500 B')
        >>> size_text(17_100_000)
        '17.1 MB'
    """
    if size_bytes > 10**6 and size_bytes % 10**5 == 0:
        return f"{size_bytes / 1e6:g} MB"
    units = (("MiB", 1 << 20), ("MB", 10**6), ("KiB", 1 << 10), ("kB", 1000))
    fits = ((name, unit) for name, unit in units if size_bytes and size_bytes % unit == 0)
    name, unit = next(fits, ("B", 1))
    return f"{size_bytes // unit} {name}"


def ms_text(seconds: float) -> str:
    """Return milliseconds, with about three digits.

    Example:
        >>> ms_text(0.000123), ms_text(0.0123), ms_text(1.23)
        ('0.12', '12.3', '1,230')
    """
    ms = 1e3 * seconds
    return f"{ms:.2f}" if ms < 10 else f"{ms:.1f}" if ms < 100 else f"{ms:,.0f}"


def spread_text(byte_spread: float | None) -> str:
    """Say how far rounds of a fit disagree; nothing where that is not known.

    Example:
        >>> spread_text(0.012), spread_text(0.31)
        ('; rounds differ by 1 %', '; rounds differ by 31 %: disturbed, measure again')
    """
    if byte_spread is None:
        return ""
    again = ": disturbed, measure again" if byte_spread > MOST_SPREAD else ""
    return f"; rounds differ by {100 * byte_spread:.0f} %{again}"
