"""Every error that Compressa raises on purpose.

CompressaError
├── ConfigError          the configuration is wrong, or differs between ranks
├── PayloadError         received bytes are not what was sent, or not what a codec writes
├── TransportError       the network or a peer failed; the transport is dead
│   ├── PeerLost         a rank died, or went silent for longer than allowed
│   └── Timeout          a rank is alive, but what it owed did not come in time
├── StateError           a call in the wrong state, or a checkpoint that does not fit
└── BackendUnavailable   a device, library or privilege is missing; names the fix
"""

from __future__ import annotations

from typing import Any

_ROW = "\n  "
"""What a message that lists several things begins each with."""


def escaped(text: str) -> str:
    r"""Return text on one line that moves no cursor: what is not printable is written out.

    For what comes from outside, such as names and paths, where a message shows it.

    Example:
        >>> print(escaped("layer\x1b[2J.weight"))
        layer\x1b[2J.weight
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class CompressaError(Exception):
    """Base class of all errors raised by Compressa; can be copied and pickled."""

    def __str__(self) -> str:
        """Return the message, with what is not printable written out."""
        return _ROW.join(map(escaped, super().__str__().split(_ROW)))

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what makes another: not every class is called with its `args` alone."""
        return _made_again, (type(self), self.args), self.__dict__

    def locate(self, where: str) -> None:
        """Add to the message, behind a semicolon, what was going on, unless it says so already."""
        if escaped(where) not in str(self):
            self.args = (f"{self}; {where}", *self.args[1:])


class ConfigError(CompressaError):
    """The configuration is invalid, or is not the same on every rank."""


class PayloadError(CompressaError):
    """Received bytes failed a check; nothing that they said was handed on."""


class TransportError(CompressaError):
    """Communication failed. The transport that raised it cannot be used again."""


class PeerLost(TransportError):  # noqa: N818 - the design's name for the event
    """A peer's process died, or nothing was heard from it for longer than allowed.

    Attributes:
        rank: The rank that was lost.
    """

    def __init__(self, rank: int, message: str) -> None:
        super().__init__(message)
        self.rank = rank


class Timeout(TransportError):  # noqa: N818 - the design's name for the event
    """A deadline passed while ranks waited.

    Attributes:
        ranks: Who holds up the others, as far as they could say what they do: where the chains of
            waits end, or all ranks of a cycle.
    """

    def __init__(self, ranks: tuple[int, ...], message: str) -> None:
        super().__init__(message)
        self.ranks = ranks


class StateError(CompressaError):
    """An operation came in the wrong state, or a checkpoint does not fit this model."""


class BackendUnavailable(CompressaError):  # noqa: N818 - the design's name for the event
    """A device, library, privilege or program is missing; the message names the fix."""


def _made_again(kind: type[CompressaError], args: tuple[Any, ...]) -> CompressaError:
    error = kind.__new__(kind)
    error.args = args
    return error
