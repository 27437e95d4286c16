"""Names and places of what jobs share, checked when a configuration is read."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from compressa.config.mistakes import show

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


def board_place(text: str) -> str:
    """Return where jobs meet: file:///folder or tcp://host:port.

    Raises:
        ValueError: It is neither.

    Example:
        >>> board_place("tcp://node0:29500")
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
