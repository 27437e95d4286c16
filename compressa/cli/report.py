"""`compressa report`: table, plots and HTML of results, partial ones too."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from compressa.cli._experiments import run_script

report_app = typer.Typer()


@report_app.command(epilog="Example: compressa report results/demo")
def report(
    folder: Annotated[Path, typer.Argument(help="A folder that `demo` or `run` wrote.")],
) -> None:
    """Print the table of a results folder, and write its plots and HTML report anew."""
    run_script("report.py", [str(folder)])
