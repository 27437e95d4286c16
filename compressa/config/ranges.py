"""Ranges of numbers that nothing else bounds: within them registration works."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge, Le

Seconds = Annotated[float, Ge(1e-3), Le(7 * 24 * 3600)]
"""A wait: longer than a call takes, and no longer than the system's own timeouts can be."""

Heartbeat = Annotated[float, Ge(1e-3), Le(24 * 3600)]
Silence = Annotated[float, Ge(1e-2), Le(7 * 24 * 3600)]
"""More than two heartbeats."""

Count = Annotated[int, Ge(0), Le(1 << 53)]
"""Of steps, elements or dimensions: what editors can write and 64 bits can add up."""

FewSteps = Annotated[int, Ge(1), Le(1 << 20)]
"""Steps of which something is kept."""

BitsPerSecond = Annotated[float, Ge(1e3), Le(1e15)]
"""Speed of a link: from a modem's to a thousand of today's fastest."""

Norm = Annotated[float, Ge(1e-30), Le(1e30)]
"""A length that float32 can hold, and its square root over the ranks."""
