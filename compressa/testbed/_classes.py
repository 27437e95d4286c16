"""Gives each connection of a host a token bucket of its own, under that of its link.

As many clouds limit them: one connection gets a part of what the link can carry. Every connection
falls into one of 1,024 classes of an `htb`, by five bits of each of its two ports; those that a
program opens one after the other get ports that differ in these. A class is guaranteed next to
nothing, and borrows up to its limit from the link's own class.
"""

from __future__ import annotations

from collections.abc import Iterator

from compressa.testbed.link import LinkSpec

_ROOT, _WHOLE, _FIRST = "1:", "1:1", 16
_BITS = 5
_BUCKETS = 1 << _BITS
# The first bit is that of the side which called: the kernel gives even ports to those that connect.
_MASK = (_BUCKETS - 1) << 1
_PORTS_AT, _SOURCE_SHIFT = 20, 16  # behind an IP header without options
_LEAST_RATE = "100kbit"
_SOURCES, _TARGETS = 2, 16  # numbers of the hash tables: one by source port, and one under each


def class_lines(device: str, link: LinkSpec) -> Iterator[str]:
    """Yield what `tc -batch` shapes a device with.

    Args:
        device: Without a queueing discipline.
        link: With a limit for connections.
    """
    rate, each = link.without_limit, link.of_connection
    yield f"qdisc add dev {device} root handle {_ROOT} htb"
    yield f"class add dev {device} parent {_ROOT} classid {_WHOLE} htb rate {rate} {_bucket(rate)}"
    for index in range(_BUCKETS * _BUCKETS):
        yield (
            f"class add dev {device} parent {_WHOLE} classid 1:{_FIRST + index:x} htb "
            f"rate {_LEAST_RATE} ceil {each} {_bucket(each)}"
        )
    yield from _filter_lines(device)


def _bucket(link: LinkSpec) -> str:
    return f"burst {link.burst_bytes}b cburst {link.burst_bytes}b quantum {link.gso_max_bytes}"


def _filter_lines(device: str) -> Iterator[str]:
    """By source port to a table, there by target port to a class; other packets pass unshaped."""
    add = f"filter add dev {device} parent {_ROOT} prio 1 protocol ip"
    every = "match u32 0 0"
    tables = [_SOURCES, *range(_TARGETS, _TARGETS + _BUCKETS)]
    yield from (f"{add} handle {table:x}: u32 divisor {_BUCKETS}" for table in tables)
    yield f"{add} u32 ht 800:: match ip protocol 6 0xff {_by(_SOURCE_SHIFT)} link {_SOURCES:x}:"
    for source in range(_BUCKETS):
        table = _TARGETS + source
        yield f"{add} u32 ht {_SOURCES:x}:{source:x}: {every} {_by(0)} link {table:x}:"
        for target in range(_BUCKETS):
            number = _FIRST + _BUCKETS * source + target
            yield f"{add} u32 ht {table:x}:{target:x}: {every} flowid 1:{number:x}"


def _by(shift: int) -> str:
    """By the five bits of a port."""
    return f"hashkey mask {_MASK << shift:#010x} at {_PORTS_AT}"
