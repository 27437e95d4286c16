"""What a check of `compressa doctor` returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "note", "fault"]
"""note: compressa works, and would work better, or do more; fault: it does not work."""


@dataclass(frozen=True)
class Finding:
    """What one check has found.

    Attributes:
        name: Of what was looked at.
        found: What is there, and what it means.
        advice: What to do; nothing if there is nothing to be done.
        state: How bad it is.
    """

    name: str
    found: str
    advice: str = ""
    state: State = "ok"


def noted(name: str, found: str, advice: str) -> Finding:
    """Return what could be better."""
    return Finding(name, found, advice, "note")


def fault(name: str, found: str, advice: str) -> Finding:
    """Return what keeps compressa from working."""
    return Finding(name, found, advice, "fault")
