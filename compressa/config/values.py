"""Kinds of values in a configuration: ranges of numbers, sizes in bytes, rates, names and places.

Sizes and rates are numbers or as people write them: "4MiB", "1.5MB", "100mbit".
"""

from __future__ import annotations

import re
from typing import Annotated
from urllib.parse import urlsplit

from annotated_types import Ge, Le
from pydantic import BeforeValidator, ByteSize, WithJsonSchema

from compressa.config.mistakes import show
from compressa.rates import PATTERN, parse_rate

Seconds = Annotated[float, Ge(1e-3), Le(7 * 24 * 3600)]
"""A wait: longer than a call takes, and no longer than the system's own timeouts can be."""

Heartbeat = Annotated[float, Ge(1e-3), Le(24 * 3600)]
Silence = Annotated[float, Ge(1e-2), Le(7 * 24 * 3600)]
"""More than two heartbeats."""

Count = Annotated[int, Ge(0), Le(1 << 53)]
"""Of steps, elements or dimensions: what editors can write and 64 bits can add up."""

FewSteps = Annotated[int, Ge(1), Le(1 << 20)]
"""Steps of which something is kept."""

Norm = Annotated[float, Ge(1e-30), Le(1e30)]
"""A length that float32 can hold, and its square root over the ranks."""

_SIZE = r"^\s*(\d+(\.\d+)?)\s*(([kKmMgG][iI]?)?[bB])?\s*$"


def parse_bytes(text: str) -> int:
    """Return a size in bytes.

    Args:
        text: A number and a unit: B, kB, MB, GB (powers of 1000), KiB, MiB, GiB (of 1024).

    Raises:
        ValueError: It is not a size, or not a whole number of bytes.

    Example:
        >>> parse_bytes("4MiB")
        4194304
    """
    match = re.fullmatch(_SIZE, text)
    if match is None:
        raise ValueError(f'must be a size in bytes such as 262144 or "256KiB", not {show(text)}')
    # ByteSize itself would read "4MiB/s" as 4 MiB, and "0.3B" as 0.
    size_bytes = float(match[1]) * ByteSize.byte_sizes[(match[3] or "b").lower()]
    if not size_bytes.is_integer():
        raise ValueError(f"must be a whole number of bytes, not {show(text)}")
    return int(size_bytes)


def _read(value: object) -> object:
    return parse_bytes(value) if isinstance(value, str) else value


def _schema(least: int, most: int) -> WithJsonSchema:
    number = {"type": "integer", "minimum": least, "maximum": most}
    return WithJsonSchema({"anyOf": [number, {"type": "string", "pattern": _SIZE}]})


_Bytes = Annotated[int, BeforeValidator(_read)]
"""A number of bytes; a string with a unit is read by `parse_bytes`."""

UnitBytes = Annotated[_Bytes, Ge(1), Le(1 << 40), _schema(1, 1 << 40)]
"""Of gradients, or of what is left of them after compression."""

WireBytes = Annotated[_Bytes, Ge(1), Le(1 << 30), _schema(1, 1 << 30)]
"""Of what is handed to the system at once."""

BurstBytes = Annotated[_Bytes, Ge(2048), Le(1 << 30), _schema(2048, 1 << 30)]
"""Of what leaves at once where sending is paced: no less than a packet with its headers."""


def _read_rate(value: object) -> object:
    return parse_rate(value) if isinstance(value, str) else value


_RATES = {
    "anyOf": [
        {"type": "number", "minimum": 1000, "maximum": 10**15},
        {"type": "string", "pattern": PATTERN},
    ]
}
BitsPerSecond = Annotated[
    float, BeforeValidator(_read_rate), Ge(1000), Le(10**15), WithJsonSchema(_RATES)
]
"""Speed of a link: from a modem's to a thousand of today's fastest."""

_NAME = re.compile(r"\w[\w.-]{0,63}", re.ASCII)


def link_name(text: str) -> str:
    """Return the name of a link.

    Raises:
        ValueError: It is none, or not one that a file can have.

    Example:
        >>> link_name("rack-7.uplink")
        'rack-7.uplink'
    """
    if not _NAME.fullmatch(text):
        raise ValueError(
            "must be up to 64 letters, digits, dots, hyphens and underscores, the first a letter, "
            f"a digit or an underscore, not {show(text)}"
        )
    return text


def meeting_place(text: str) -> str:
    """Return where jobs meet: file:///folder or tcp://host:port.

    Raises:
        ValueError: It is neither.

    Example:
        >>> meeting_place("tcp://node0:29500")
        'tcp://node0:29500'
    """
    try:
        place = urlsplit(text)
        plain = text.isprintable() and not (place.query or place.fragment or place.username)
        folder = place.scheme == "file" and not place.netloc and len(place.path) > 1
        host = place.scheme == "tcp" and place.hostname and place.port and not place.path
    except ValueError:  # a port that is none
        folder = host = plain = False
    if not (plain and (folder or host)):
        raise ValueError(f'must be "file:///folder" or "tcp://host:port", not {show(text)}')
    return text
