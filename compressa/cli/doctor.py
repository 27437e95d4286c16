"""`compressa doctor`: looks at this machine and installation, and says what to do."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from compressa.cli._finding import Finding

doctor_app = typer.Typer()

_SHOWN = {"ok": "ok", "note": "[yellow]note[/yellow]", "fault": "[red]FAULT[/red]"}


@doctor_app.command(epilog="Example: compressa doctor --ranks 4")
def doctor(
    ranks: Annotated[
        int | None,
        typer.Option(min=1, help="How many ranks are to run here; else as a launcher says, or 1."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Look at packages, GPUs, kernels, cores and network, and say what to do.

    The exit status is 1 if there is a FAULT, which keeps compressa from working. A note is about
    what would work better, or would work in addition. Start it on each machine, in the environment
    and with the variables of training.
    """
    findings = list(examine(ranks))
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(each) for each in findings], indent=2))
    else:
        _print(findings)
    raise typer.Exit(any(each.state == "fault" for each in findings))


def examine(ranks: int | None) -> Iterator[Finding]:
    """Yield what all checks find; without torch, what is found of packages only.

    Args:
        ranks: How many are to run on this machine; None for as many as a launcher says.
    """
    from compressa.cli._install_checks import backends, packages

    found = list(packages())
    yield from found
    if any(each.name == "torch" and each.state == "fault" for each in found):
        return
    from compressa.cli._machine_checks import machine
    from compressa.cli._network_checks import network

    yield from backends()
    yield from machine(ranks)
    yield from network()


def _print(findings: list[Finding]) -> None:
    from rich import markup
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    for column in ("state", "name"):
        table.add_column(column, no_wrap=True)
    table.add_column("found", overflow="fold")
    for each in findings:
        table.add_row(_SHOWN[each.state], each.name, markup.escape(each.found))
        if each.advice:
            table.add_row("", "", f"[bold]->[/bold] {markup.escape(each.advice)}")
    Console().print(table)
