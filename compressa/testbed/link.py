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
from dataclasses import dataclass, replace

from compressa.errors import ConfigError
from compressa.rates import parse_rate, rate_text

_DELAYED = re.compile(r"(?P<rest>[^+]*?)\s*\+\s*(?P<ms>\d+(\.\d+)?)\s*ms")
_LOWEST_BITS_PER_S = 1e5
_HIGHEST_BITS_PER_S = 1e11
_LONGEST_MS = 1000.0
# A socket may hold four times as much, which the kernel counts in 31 bits.
_MOST_UNDER_WAY_BYTES = 1 << 28
_REFERENCE_BITS_PER_S = 1e8
_REFERENCE_BURST_BYTES = 12 * 1024
# 12 KiB at 100 Mbit/s becomes 20 KiB at 1 Gbit/s. Measured there with 14 kB packets: with 32 KiB an
# idle link passes 64 kB in 0.69 of its time, with 16 KiB it holds 0.83 of its rate.
_BURST_EXPONENT = math.log10(20 / 12)
# Room for one Ethernet frame beside the largest merged packet.
_FRAME_BYTES = 2048
_GSO_BYTES = 14_000
_GSO_UNSHAPED_BYTES = 65_536
# A switch port's buffer: about 25 ms of traffic, and never less than a small incast needs. Where
# the way there and back is longer, what it holds, or else one lost packet lets the link idle.
_QUEUE_S = 0.025
_QUEUE_LEAST_BYTES = 256 * 1024


@dataclass(frozen=True, kw_only=True)
class LinkSpec:
    """The speed of one host's link, the same in both directions, and how far the hosts are apart.

    Attributes:
        rate_bits_per_s: Bits per second on the wire (Ethernet frames, headers included), or None
            for an unshaped link.
        connection_bits_per_s: What each connection can have of it, as many clouds limit them; None
            for all of it.
        delay_ms: Milliseconds that a frame travels from host to host, beside its time on the links.

    Raises:
        ConfigError: The rate is not between 100 kbit/s and 100 Gbit/s, that of a connection is
            above it or comes with a delay, the delay is not 0 to 1000 ms in microseconds, or more
            than 256 MiB are under way in the time there and back.

    Example:
        >>> LinkSpec.parse("100mbit").rate_bits_per_s
        100000000.0
        >>> str(LinkSpec.parse("2.5 Gbit/s")), str(LinkSpec.parse("unshaped"))
        ('2.5gbit', 'unshaped')
        >>> LinkSpec.parse("250mbit of 1gbit").seconds_for(1_000_000, connections=2)
        0.016
        >>> LinkSpec.parse("10mbit+100ms").delay_ms
        100.0
    """

    rate_bits_per_s: float | None
    connection_bits_per_s: float | None = None
    delay_ms: float = 0.0

    def __post_init__(self) -> None:
        """Refuse rates that a token bucket cannot hold, and delays that the line cannot."""
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
        if not 0 <= self.delay_ms <= _LONGEST_MS or self.delay_ms != round(self.delay_ms, 3):
            raise ConfigError(
                f"A delay of {self.delay_ms:g} ms cannot be kept; choose 0 to {_LONGEST_MS:g} ms, "
                "in whole microseconds."
            )
        if self.delay_ms and self.connection_bits_per_s is not None:
            raise ConfigError(
                "A link that limits its connections has no delay: no self-check could tell whether "
                'it holds both. Leave out "of" or the delay.'
            )
        if self.round_trip_bytes > _MOST_UNDER_WAY_BYTES:
            raise ConfigError(
                f"{self.round_trip_bytes / 1e6:.0f} MB are under way on a link of {self}, more "
                "than a socket can hold; choose a lower rate or a shorter delay."
            )

    @classmethod
    def parse(cls, text: str | LinkSpec) -> LinkSpec:
        """Read "100mbit", "2.5 Gbit/s", "unshaped", "250mbit of 1gbit" or "10mbit+100ms".

        Args:
            text: A number and one of bit, kbit, mbit, gbit (powers of 1000), in any case; before
                "of", what a connection can have; behind "+", the delay. A LinkSpec is returned as
                it is.

        Raises:
            ConfigError: The text is none of these, or the rate or the delay is out of range.
        """
        if isinstance(text, LinkSpec):
            return text
        plain = text.strip().lower()
        if delayed := _DELAYED.fullmatch(plain):
            delay_ms = round(float(delayed["ms"]), 3)
            return replace(cls.parse(delayed["rest"]), delay_ms=delay_ms)
        if plain == "unshaped":
            return cls(rate_bits_per_s=None)
        whole, *connection = reversed(plain.split(" of ", 1))
        try:
            rates = [parse_rate(part) for part in (whole, *connection)]
        except ValueError:
            raise ConfigError(
                f'"{text}" is not a link; write a number with kbit, mbit or gbit, such as '
                '"100mbit", "1gbit", "250mbit of 1gbit" or "10mbit+100ms", or write "unshaped".'
            ) from None
        return cls(rate_bits_per_s=rates[0], connection_bits_per_s=rates[1] if connection else None)

    def __str__(self) -> str:
        """The shortest text that `parse` reads back as the same link."""
        own = "unshaped" if self.rate_bits_per_s is None else rate_text(self.rate_bits_per_s)
        if self.delay_ms:
            return f"{own}+{f'{self.delay_ms:.3f}'.rstrip('0').rstrip('.')}ms"
        connection = self.connection_bits_per_s
        return own if connection is None else f"{rate_text(connection)} of {own}"

    @property
    def without_limit(self) -> LinkSpec:
        """The link itself, whatever a connection can have of it."""
        return replace(self, connection_bits_per_s=None)

    @property
    def of_connection(self) -> LinkSpec:
        """A link of which one connection can have all that it can have of this one."""
        limit = self.connection_bits_per_s
        return self if limit is None else LinkSpec(rate_bits_per_s=limit)

    @property
    def delay_s(self) -> float:
        """Seconds that a frame travels from host to host, beside its time on the links."""
        return self.delay_ms / 1e3

    @property
    def round_trip_bytes(self) -> int:
        """Bytes that are under way when the link is full: rate times the way there and back."""
        return round((self.rate_bits_per_s or 0.0) / 8 * 2 * self.delay_s)

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
        buffer_bytes = round((self.rate_bits_per_s or 0.0) / 8 * _QUEUE_S)
        return max(_QUEUE_LEAST_BYTES, buffer_bytes, self.round_trip_bytes)

    def seconds_for(self, n_bytes: float, connections: int = 1) -> float:
        """Return seconds that bytes take on an idle link, beside its delay; 0 on an unshaped one.

        Args:
            n_bytes: On the wire, headers included.
            connections: Over how many connections, which share it equally.
        """
        if self.rate_bits_per_s is None:
            return 0.0
        limit = self.connection_bits_per_s or self.rate_bits_per_s
        return n_bytes * 8 / min(self.rate_bits_per_s, connections * limit)
