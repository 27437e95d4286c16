"""Verdicts: what was reached of one thing that is asked."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from harness.tables import Table

WORDS = {True: "met", False: "missed", None: "not judged"}

_NUMBERS = frozenset({"hosts", "reached", "asked"})


class Verdict(NamedTuple):
    """One target.

    Attributes:
        target: What is asked.
        where: Of what, in as many words as a benchmark needs.
        reached: What the worst row has.
        asked: What it should have.
        at: Which row that is.
        met: Whether all have it; None where nothing can be said.
    """

    target: str
    where: tuple[str, ...]
    reached: str
    asked: str
    at: str
    met: bool | None


def table(verdicts: Iterable[Verdict], *where: str) -> Table:
    """Show verdicts.

    Args:
        verdicts: They.
        where: Titles of what they say of where.
    """
    titles = ("target", *where, "reached", "asked", "at", "target met")
    lines = [(v.target, *v.where, v.reached, v.asked, v.at, WORDS[v.met]) for v in verdicts]
    return Table("", titles, lines, _NUMBERS)
