"""Tables of text for the terminal and for pages alike, and verdicts on what is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from rich import table

Cells = tuple[str, ...]
R = TypeVar("R")

WORDS = {True: "met", False: "missed", None: "not judged"}
"""What tables say of a target that is met, that is not, and of which nothing can be said."""

_COLOURS = {"met": "green", "missed": "red"}
_VERDICTS = ("reached", "asked", "at", "target met")


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
    """Return a table's lines, without its caption; cells may hold vertical bars."""
    rules = ["---:" if title in shown.right else "---" for title in shown.titles]
    lines = (shown.titles, rules, *shown.lines)
    escaped = ([cell.replace("|", "\\|") for cell in line] for line in lines)
    return "".join("| " + " | ".join(line) + " |\n" for line in escaped)


def laid_out(shown: Table) -> table.Table:
    """Return a table for a terminal, with verdicts in their colours."""
    made = table.Table(box=None, pad_edge=False)
    for title in shown.titles:
        made.add_column(title, justify="right" if title in shown.right else "left")
    for *cells, last in shown.lines:
        colour = _COLOURS.get(last)
        made.add_row(*cells, f"[{colour}]{last}[/{colour}]" if colour else last)
    return made


class Verdict(NamedTuple):
    """What was reached of one target.

    Attributes:
        target: What is asked.
        where: Of what, in as many words as a benchmark needs.
        reached: What the worst row has.
        asked: What it should have.
        at: Which row that is.
        met: Whether all have it; None where nothing can be said.
    """

    target: str
    where: Cells
    reached: str
    asked: str
    at: str
    met: bool | None


@dataclass(frozen=True)
class Target:
    """What a figure should be at most, or at least.

    Attributes:
        name: What is asked.
        bound: The figure; none if each thing that is judged has its own.
        least: Whether more is better, so that it is the least.
        shown: How a figure is written.
        asked: How the bound is written, if not alike.
    """

    name: str
    bound: float = 0.0
    least: bool = False
    shown: str = "{:.2f}"
    asked: str = ""

    def judged(
        self, where: Cells, reached: float, at: str = "", bound: float | None = None
    ) -> Verdict:
        """Return the verdict on a figure.

        Args:
            where: Of what it is.
            reached: It.
            at: Which row has it.
            bound: What it should be, if the target leaves that open.

        Example:
            >>> Target("share", 0.95, least=True).judged(("here",), 0.961)[2:]
            ('0.96', '0.95', '', True)
        """
        most = self.bound if bound is None else bound
        met = reached >= most if self.least else reached <= most
        asked = (self.asked or self.shown).format(most)
        return Verdict(self.name, where, self.shown.format(reached), asked, at, met)


def verdicts_table(verdicts: Iterable[Verdict], *where: str) -> Table:
    """Show verdicts.

    Args:
        verdicts: They.
        where: Titles of what they say of where.
    """
    lines = [(v.target, *v.where, v.reached, v.asked, v.at, WORDS[v.met]) for v in verdicts]
    numbers = frozenset({"hosts", "reached", "asked"})
    return Table("", ("target", *where, *_VERDICTS), lines, numbers)


def with_block(page: str, name: str, block: str) -> str:
    r"""Return a page's text with a block between the two comments of its name.

    All else on the page is written by hand.

    Args:
        page: Its text.
        name: Of the comments.
        block: What comes between them, and ends a line.

    Raises:
        ValueError: It does not have each comment once, in order.

    Example:
        >>> with_block("<!-- figures:begin --> older <!-- figures:end -->.", "figures", "newer")
        '<!-- figures:begin -->\n\nnewer\n<!-- figures:end -->.'
    """
    first, last = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    before, begin, rest = page.partition(first)
    _, end, after = rest.partition(last)
    if not begin or not end or first in rest or last in after:
        raise ValueError(f"the page must hold {first} and {last} once each, in this order")
    return f"{before}{first}\n\n{block}\n{last}{after}"
