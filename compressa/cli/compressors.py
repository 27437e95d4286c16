"""`compressa compressors`: what there is to choose from, and the page of each."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from compressa.facts import Facts

compressors_app = typer.Typer()


@compressors_app.command(epilog="Example: compressa compressors topk")
def compressors(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Print all about this one.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """List all compressors with facts, those of installed packages too; or describe one."""
    if name is not None:
        _print_one(name, as_json)
        return
    from compressa.facts import survey

    found, problems = survey()
    if as_json:
        listed = [dataclasses.asdict(own) for own in found]
        typer.echo(json.dumps({"compressors": listed, "problems": problems}, indent=2))
    else:
        _print_table(found)
    for problem in problems:
        typer.echo(f"warning: {problem}", err=True)


def _print_one(name: str, as_json: bool) -> None:
    from compressa.config.choices import CHOICES
    from compressa.facts import find
    from compressa.page import page

    entry, own = find(name)
    if as_json:
        values: dict[str, Any] = dataclasses.asdict(own)
        values["hyper_parameters"] = CHOICES[name].model_json_schema()["properties"]
        typer.echo(json.dumps(values, indent=2))
    elif sys.stdout.isatty():
        from rich.console import Console
        from rich.markdown import Markdown

        Console().print(Markdown(page(entry, own, "#")))
    else:
        typer.echo(page(entry, own, "#"), nl=False)


def _print_table(found: Sequence[Facts]) -> None:
    from rich.console import Console
    from rich.table import Table

    from compressa.compressors import Family
    from compressa.facts import BUSIEST_OF, LIBRARY, RANKS

    table = Table(box=None, pad_edge=False)
    table.add_column("", no_wrap=True)
    table.add_column("kind", no_wrap=True)
    table.add_column("ratio", justify="right", no_wrap=True)
    table.add_column(f"of {'/'.join(map(str, BUSIEST_OF))}", justify="right", no_wrap=True)
    table.add_column("state", justify="right", no_wrap=True)
    table.add_column(f"on {RANKS} ranks", no_wrap=True)
    for title in ("summable", "error", "paper"):
        table.add_column(title, overflow="fold")
    for family in Family:
        members = [own for own in found if own.family == family]
        if members:
            table.add_row(f"[bold]{family}[/bold]")
        for own in members:
            whose = [own.paper, "" if own.source == LIBRARY else own.source]
            table.add_row(
                f"  {own.name}",
                own.kind,
                f"{own.ratio:.1f}",
                own.busiest_text,
                f"{own.state_bytes:.3g}",
                own.exchange,
                ", ".join(own.summable),
                own.error_text,
                "; ".join(filter(None, whose)),
            )
    # In a file or a pipe nothing has to be folded.
    Console(width=None if sys.stdout.isatty() else _FILE_WIDTH).print(table)
    typer.echo(_LEGEND)


_FILE_WIDTH = 160


_LEGEND = """
ratio: dense bytes over compressed, for a float32 matrix of 1000 x 1000. of 4/16/64: bytes of a
dense ring over those of the busiest of so many ranks; in 16 bits a dense ring has 2.0. state: bytes
per element that a rank keeps. delta: E|C(x) - x|^2 <= (1 - delta) |x|^2 for every x; omega, squared
error: E|C(x) - x|^2 over |x|^2; "on 4 ranks": of the mean, over the sum of all |x_i|^2 / 4^2.
summable: the dtype in which an all-reduce may add up payloads.
`compressa compressors NAME` prints the page of one."""
