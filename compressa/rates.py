"""Rates of links as people write them: "100mbit", "2.5 Gbit/s"."""

from __future__ import annotations

import re

from compressa.errors import escaped

_UNITS = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_TEXT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmg]?bit)(?:/s|ps)?\s*", re.IGNORECASE)
PATTERN = r"^\s*\d+(\.\d+)?\s*[kKmMgG]?[bB][iI][tT](/[sS]|[pP][sS])?\s*$"
"""What `parse_rate` reads, in the regular expressions of JSON Schema."""

_SHOWN = 120
_FRAME_BYTES, _DATA_BYTES = 1538, 1448  # of Ethernet, with its gap, and of TCP in it


def parse_rate(text: str) -> float:
    """Return bits per second, a whole number of them.

    Args:
        text: A number and one of bit, kbit, mbit, gbit (powers of 1000), in any case.

    Raises:
        ValueError: It is not a rate.

    Example:
        >>> parse_rate("100mbit"), parse_rate("2.5 Gbit/s")
        (100000000.0, 2500000000.0)
    """
    match = _TEXT.fullmatch(text)
    if match is None:
        shown = escaped(text[:_SHOWN])
        raise ValueError(
            f'must be a rate in bits per second such as 1e8 or "100mbit", not "{shown}"'
        )
    return float(round(float(match[1]) * _UNITS[match[2].lower()]))


def rate_text(bits_per_s: float) -> str:
    """Return the shortest text that `parse_rate` reads back.

    Example:
        >>> rate_text(2.5e9)
        '2.5gbit'
    """
    unit = max((u for u in _UNITS if _UNITS[u] <= bits_per_s), key=_UNITS.__getitem__)
    return f"{bits_per_s / _UNITS[unit]:.12g}{unit}"


def data_bytes_per_s(bits_per_s: float) -> float:
    """Return what a port of such a rate carries beside the headers of Ethernet and TCP.

    Example:
        >>> round(data_bytes_per_s(1e8))
        11768531
    """
    return bits_per_s / 8 * _DATA_BYTES / _FRAME_BYTES
