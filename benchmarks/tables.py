"""Tables, as cells of text: for the command line and for the page alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rich import table

Cells = tuple[str, ...]

_COLOURS = {"met": "green", "missed": "red"}


class Table(NamedTuple):
    """One table.

    Attributes:
        caption: What it shows; nothing if what stands before it says so.
        titles: Of its columns.
        lines: Its cells.
        numbers: Titles of columns that are set flush right; all but the first if left out.
    """

    caption: str
    titles: Cells
    lines: Sequence[Cells]
    numbers: frozenset[str] | None = None

    @property
    def right(self) -> frozenset[str]:
        """Titles of columns that are set flush right."""
        return frozenset(self.titles[1:]) if self.numbers is None else self.numbers


def markdown(shown: Table) -> str:
    """Return a table's lines, without its caption."""
    rules = ["---:" if title in shown.right else "---" for title in shown.titles]
    lines = (shown.titles, rules, *shown.lines)
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def laid_out(shown: Table) -> table.Table:
    """Return a table for a terminal, with verdicts in their colours."""
    made = table.Table(box=None, pad_edge=False)
    for title in shown.titles:
        made.add_column(title, justify="right" if title in shown.right else "left")
    for *cells, last in shown.lines:
        colour = _COLOURS.get(last)
        made.add_row(*cells, f"[{colour}]{last}[/{colour}]" if colour else last)
    return made
