"""Partition: into what chunks messages are cut, and how many bytes nothing can overtake.

Both are settled when a transport is opened, the same on every rank. They move no bit: what is
compressed and added together is cut by size alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from compressa.collectives.choice import Costs
from compressa.config import Config
from compressa.config.rules import ConfigWarning, assign
from compressa.engine.start.pace import paced_chunk_bytes
from compressa.parameters import ParameterInfo
from compressa.schedulers import Link, chunk_bytes, credit_bytes

_CHUNK_BYTES = 256 << 10
_CREDIT_BYTES = 512 << 10
_CHUNK_S = 2e-4  # of a core that computes: a call and a wake-up at either end
_WAKE_S = 0.005  # a thread that wants to send waits so long for a core that computes
_LEAST_KEPT_BYTES, _MOST_KEPT_BYTES = 6 << 10, 64 << 10


class Sizes(NamedTuple):
    """How a transport uses its wire.

    Attributes:
        chunk_bytes: Most bytes that go out in one piece.
        credit_bytes: Most bytes handed over for one peer that more urgent ones cannot overtake.
    """

    chunk_bytes: int
    credit_bytes: int


def partition(config: Config, parameters: Sequence[ParameterInfo], costs: Costs | None) -> Sizes:
    """Return what is configured; else, where order counts, what the measured link makes best.

    Args:
        config: Fixes sizes, or leaves them to this.
        parameters: Whose gradients a step sends.
        costs: Of the link; None if it was not measured.
    """
    chunk, credit = config.exchange.chunk_bytes, config.exchange.credit_bytes
    link = wire(costs)
    if link is not None and config.schedule.overtaking:
        total_bytes = _payload_bytes(config, parameters)
        costly = replace(link, overhead_s=max(link.overhead_s, _CHUNK_S))
        chunk = chunk or min(chunk_bytes(total_bytes, costly), credit or _CREDIT_BYTES)
        credit = credit or credit_bytes(_slow_to_answer(link), chunk)
    credit = credit or max(_CREDIT_BYTES, chunk or 0)
    chunk = chunk or min(_CHUNK_BYTES, credit)
    return Sizes(paced_chunk_bytes(config.schedule, chunk), credit)


def kept_bytes(config: Config, costs: Costs | None) -> int | None:
    """Return what the kernel may keep of all that it was given for one peer; None: its own choice.

    By itself it keeps as much as fits the buffers on the way, which nothing overtakes: on a slow
    link for longer than a step can wait. Twice what the wire carries meanwhile keeps it busy.

    Args:
        config: Says whether order counts.
        costs: Of the link; None if it was not measured.
    """
    link = wire(costs)
    if link is None or not config.schedule.overtaking:
        return None
    kept = max(2 * credit_bytes(_slow_to_answer(link), 0), _LEAST_KEPT_BYTES)
    return kept if kept < _MOST_KEPT_BYTES else None


def _slow_to_answer(link: Link) -> Link:
    return replace(link, latency_s=link.latency_s + _WAKE_S)


def _payload_bytes(config: Config, parameters: Sequence[ParameterInfo]) -> int:
    """What is left of all gradients in the end; of rules without effect others tell."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConfigWarning)
        compressors = assign(config, parameters)
    last = max((b for c in compressors.values() for b in c.breakpoints), default=0)
    now = [(compressors[p.name].at(last).for_parameter(p), p) for p in parameters]
    return sum(compressor.payload_bytes(p.shape) for compressor, p in now)


def wire(costs: Costs | None, sizes: Sizes | None = None) -> Link | None:
    """Return the network as schedulers see it; None if nothing was measured.

    Args:
        costs: Of the link.
        sizes: Into what chunks the transport cuts messages, if it does.
    """
    if costs is None:
        return None
    link = costs.link
    return Link(1 / link.byte_s, link.message_s, link.message_s, *(sizes or ()))
