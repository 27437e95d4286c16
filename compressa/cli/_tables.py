"""What subcommands print: sentences, tables of figures, and milliseconds."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table


def say(text: str) -> None:
    """Print a sentence as it is, however wide the terminal."""
    Console().print(text, highlight=False, soft_wrap=True, markup=False)


def figures_table(names: Sequence[str], figures: Sequence[str]) -> Table:
    """Return a table without rows: columns of names to the left, of figures to the right."""
    table = Table(*names, box=None, pad_edge=False)
    for title in figures:
        table.add_column(title, justify="right")
    return table


def ms(seconds: float) -> str:
    """Return milliseconds with two decimals."""
    return f"{1e3 * seconds:,.2f}"
