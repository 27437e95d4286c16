"""Tables, as cells of text: for the command line and for pages alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from rich import table

Cells = tuple[str, ...]
R = TypeVar("R")

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


def table_of(
    caption: str,
    rows: Iterable[R],
    columns: Mapping[str, Callable[[R], str]],
    numbers: frozenset[str] | None = None,
) -> Table:
    """Return a table with a line for each row.

    Args:
        caption: What it shows.
        rows: What stands in it.
        columns: By title, what a cell says of a row.
        numbers: As `Table` has it.

    Example:
        >>> table_of("Of it", [1, 2], {"n": str, "squared": lambda n: str(n * n)}).lines
        [('1', '1'), ('2', '4')]
    """
    lines = [tuple(cell(row) for cell in columns.values()) for row in rows]
    return Table(caption, tuple(columns), lines, numbers)


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
