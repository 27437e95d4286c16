"""Waiting for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(what: Callable[[], object], patience_s: float = 10.0) -> bool:
    """Wait until something is so, for a while; return whether it is."""
    end_s = time.monotonic() + patience_s
    while not what() and time.monotonic() < end_s:
        time.sleep(0.005)
    return bool(what())
