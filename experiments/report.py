# python experiments/report.py results/demo
"""Print the table of a results folder, and write its plots and HTML report anew.

Works on partial results, such as those of a run that was interrupted.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from lab.report import render
from rich.console import Console


def report(folder: Annotated[Path, typer.Argument(help="A folder with a cells.jsonl.")]) -> None:
    """Render a results folder."""
    try:
        render(folder, Console())
    except (OSError, ValueError) as error:
        Console(stderr=True).print(f"error: {error}", style="red", markup=False)
        raise typer.Exit(1) from error


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, help=__doc__)
    app.command(help=__doc__)(report)
    sys.exit(app())
