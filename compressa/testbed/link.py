"""What a link of the testbed can carry, and how it is shaped to carry exactly that.

A token bucket passes its *burst* at once before it holds the rate. With the common 256 kB, a
170 kB message crosses a "100 Mbit/s" link in half a millisecond, and a benchmark on top of it
measures nothing. A bucket that is too small is wrong as well: the kernel's timer wakes late, the
bucket overflows meanwhile, and the link is slower than it says. So the burst grows with the rate
(12 KiB up to 100 Mbit/s, 20 KiB at 1 Gbit/s), and packets that the kernel has merged for
segmentation offload are kept smaller than the bucket.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from compressa.errors import ConfigError

_UNITS = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_TEXT = re.compile(r"(?P<number>\d+(\.\d+)?)\s*(?P<unit>[kmg]?bit)(/s|ps)?")
_LOWEST_BITS_PER_S = 1e5
_HIGHEST_BITS_PER_S = 1e11
_REFERENCE_BITS_PER_S = 1e8
_REFERENCE_BURST_BYTES = 12 * 1024
# 12 KiB at 100 Mbit/s becomes 20 KiB at 1 Gbit/s. Measured there with 14 kB packets: with 32 KiB an
# idle link passes 64 kB in 0.69 of its time, with 16 KiB it holds 0.83 of its rate.
_BURST_EXPONENT = math.log10(20 / 12)
# Room for one Ethernet frame beside the largest merged packet.
_FRAME_BYTES = 2048
_GSO_BYTES = 14_000
_GSO_UNSHAPED_BYTES = 65_536
# A switch port's buffer: about 25 ms of traffic, and never less than a small incast needs.
_QUEUE_S = 0.025
_QUEUE_LEAST_BYTES = 256 * 1024


@dataclass(frozen=True, kw_only=True)
class LinkSpec:
    """The speed of one host's link, the same in both directions.

    Attributes:
        rate_bits_per_s: Bits per second on the wire (Ethernet frames, headers included), or None
            for an unshaped link.
        connection_bits_per_s: What each connection can have of it, as many clouds limit them; None
            for all of it.

    Raises:
        ConfigError: The rate is not between 100 kbit/s and 100 Gbit/s, or that of a connection is
            above it.

    Example:
        >>> LinkSpec.parse("100mbit").rate_bits_per_s
        100000000.0
        >>> str(LinkSpec.parse("2.5 Gbit/s")), str(LinkSpec.parse("unshaped"))
        ('2.5gbit', 'unshaped')
        >>> LinkSpec.parse("250mbit of 1gbit").seconds_for(1_000_000, connections=2)
        0.016
    """

    rate_bits_per_s: float | None
    connection_bits_per_s: float | None = None

    def __post_init__(self) -> None:
        """Refuse rates that a token bucket cannot hold."""
        for rate in (self.rate_bits_per_s, self.connection_bits_per_s):
            if rate is not None and not _LOWEST_BITS_PER_S <= rate <= _HIGHEST_BITS_PER_S:
                raise ConfigError(
                    f"A link of {rate:g} bit/s cannot be shaped; choose between 100kbit and "
                    '100gbit, or "unshaped".'
                )
        if (self.connection_bits_per_s or 0.0) > (self.rate_bits_per_s or 0.0):
            raise ConfigError(
                f"A connection cannot have {self.connection_bits_per_s:g} bit/s of a link of "
                f"{self.rate_bits_per_s or 0:g} bit/s; give the link a rate at least as high."
            )

    @classmethod
    def parse(cls, text: str | LinkSpec) -> LinkSpec:
        """Read "100mbit", "2.5 Gbit/s", "unshaped" or "250mbit of 1gbit".

        Args:
            text: A number and one of bit, kbit, mbit, gbit (powers of 1000), in any case; before
                "of", what a connection can have. A LinkSpec is returned as it is.

        Raises:
            ConfigError: The text is none of these, or the rate is out of range.
        """
        if isinstance(text, LinkSpec):
            return text
        plain = text.strip().lower()
        if plain == "unshaped":
            return cls(rate_bits_per_s=None)
        whole, *connection = reversed(plain.split(" of ", 1))
        matches = [_TEXT.fullmatch(part.strip()) for part in (whole, *connection)]
        rates = [_bits_per_s(match) for match in matches if match is not None]
        if len(rates) < len(matches):
            raise ConfigError(
                f'"{text}" is not a link; write a number with kbit, mbit or gbit, such as '
                '"100mbit", "1gbit" or "250mbit of 1gbit", or write "unshaped".'
            )
        return cls(rate_bits_per_s=rates[0], connection_bits_per_s=rates[1] if connection else None)

    def __str__(self) -> str:
        """The shortest text that `parse` reads back as the same link."""
        if self.rate_bits_per_s is None:
            return "unshaped"
        own = _text(self.rate_bits_per_s)
        connection = self.connection_bits_per_s
        return own if connection is None else f"{_text(connection)} of {own}"

    @property
    def without_limit(self) -> LinkSpec:
        """The link itself, whatever a connection can have of it."""
        return LinkSpec(rate_bits_per_s=self.rate_bits_per_s)

    @property
    def of_connection(self) -> LinkSpec:
        """A link of which one connection can have all that it can have of this one."""
        limit = self.connection_bits_per_s
        return LinkSpec(rate_bits_per_s=self.rate_bits_per_s if limit is None else limit)

    @property
    def burst_bytes(self) -> int:
        """Bytes that an idle link passes at once: the depth of the token bucket."""
        faster = max(1.0, (self.rate_bits_per_s or 0.0) / _REFERENCE_BITS_PER_S)
        return round(_REFERENCE_BURST_BYTES * math.pow(faster, _BURST_EXPONENT))

    @property
    def gso_max_bytes(self) -> int:
        """Largest packet that segmentation offload may hand to the link."""
        if self.rate_bits_per_s is None:
            return _GSO_UNSHAPED_BYTES
        wanted = max(_GSO_BYTES, self.burst_bytes * 3 // 7)
        return min(wanted, self.burst_bytes - _FRAME_BYTES, _GSO_UNSHAPED_BYTES)

    @property
    def queue_bytes(self) -> int:
        """Bytes that wait at one end of the link before packets are dropped."""
        return max(_QUEUE_LEAST_BYTES, round((self.rate_bits_per_s or 0.0) / 8 * _QUEUE_S))

    def seconds_for(self, n_bytes: float, connections: int = 1) -> float:
        """Return seconds that bytes take on an idle link; 0 on an unshaped one.

        Args:
            n_bytes: On the wire, headers included.
            connections: Over how many connections, which share it equally.
        """
        if self.rate_bits_per_s is None:
            return 0.0
        limit = self.connection_bits_per_s or self.rate_bits_per_s
        return n_bytes * 8 / min(self.rate_bits_per_s, connections * limit)


def _bits_per_s(match: re.Match[str]) -> float:
    return float(round(float(match["number"]) * _UNITS[match["unit"]]))


def _text(bits_per_s: float) -> str:
    unit = max((u for u in _UNITS if _UNITS[u] <= bits_per_s), key=_UNITS.__getitem__)
    return f"{bits_per_s / _UNITS[unit]:.12g}{unit}"
