"""`compressa demo`: the main job, on a shaped network on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from compressa.cli._experiments import run_script

demo_app = typer.Typer()


@demo_app.command(epilog="Example: compressa demo --out results/demo")
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("results/demo"),
) -> None:
    """Train real tasks on 4 hosts with every compressor, and report what it bought.

    Takes up to 6 minutes on 2 cores. Prints one table and writes JSON lines, plots and
    an HTML report.
    """
    run_script("accuracy_vs_bandwidth.py", ["--plan", "demo", "--out", str(out)])
