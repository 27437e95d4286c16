"""`compressa link`: what the user's own network is like, for `exchange.link`."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from compressa.cli._tables import figures_table, say
from compressa.config import load_config
from compressa.engine.start.link_file import LinkFile, write
from compressa.link.measure import Check, opened
from compressa.link.texts import ms_text, size_text, spread_text
from compressa.transports.table import TRANSPORTS, USUAL

link_app = typer.Typer()

_LARGE_BYTES = 1_000_000
_MEASURABLE = [name for name, row in TRANSPORTS.items() if not row.device]


def _measurable(transport: str) -> str:
    if transport not in _MEASURABLE:
        raise typer.BadParameter(f"is not one of {', '.join(_MEASURABLE)}")
    return transport


@link_app.command(epilog="Example: torchrun --nproc-per-node 2 -m compressa link --out link.json")
def link(
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the figures to this file, on rank 0.")
    ] = None,
    transport: Annotated[
        str,
        typer.Option(
            metavar="|".join(_MEASURABLE), callback=_measurable, help="As exchange.transport."
        ),
    ] = USUAL,
    connections: Annotated[
        int, typer.Option(min=1, max=16, help="As exchange.connections, of tcp.")
    ] = 1,
    budget: Annotated[float, typer.Option(min=0.01, help="Seconds for each thing timed.")] = 0.2,
    deadline: Annotated[float, typer.Option(min=1.0, help="Longest wait, in seconds.")] = 120.0,
) -> None:
    """Fit the cost model to this network, and compare its predictions with measurement.

    To be started on every rank, as training is: by torchrun, or by whatever else sets RANK,
    WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Nothing else should use the network meanwhile. It
    takes about half a minute.

    With exchange.link = FILE, algorithm = "auto" chooses by the figures; `compressa explain` shows
    how.
    """
    exchange = {"transport": transport, "connections": connections, "deadline_s": deadline}
    config = load_config({"exchange": exchange})
    with (
        Console(stderr=True).status("waiting for all ranks") as status,
        opened(config, budget, status.update) as run,
    ):
        figures = run.fit()
        checks = list(run.check(figures))
        if run.rank:
            return
        if out is not None:
            write(out, figures)
    say(describe(figures))
    Console().print(_table(checks))
    say(_errors(checks))
    if out is not None:
        say(f'Written to {out}; name it in [exchange] as link = "{out}".')


def describe(figures: LinkFile) -> str:
    """Say in words what a network is like."""
    return (
        f"{figures.ranks} ranks on {figures.hosts} hosts, over {figures.transport}: a message "
        f"{1e6 * figures.message_s:.0f} us, a byte {1e9 * figures.byte_s:.3g} ns "
        f"({1e-6 / figures.byte_s:,.0f} MB/s; {1e-6 / figures.pair_byte_s:,.0f} MB/s between two "
        f"ranks alone), to add a byte {1e9 * figures.reduce_s:.2g} ns"
        f"{spread_text(figures.byte_spread)}"
    )


def _table(checks: list[Check]) -> Table:
    titles = ("size", "measured ms", "by a, b, g", "error", "as corrected", "error")
    table = figures_table(["algorithm"], titles)
    for check in checks:
        table.add_row(
            check.algorithm,
            size_text(check.size_bytes),
            ms_text(check.measured_s),
            ms_text(check.formula_s),
            f"{check.formula_error:+.0%}",
            ms_text(check.predicted_s),
            f"{check.error:+.0%}",
        )
    return table


def _errors(checks: list[Check]) -> str:
    large = [check for check in checks if check.size_bytes > _LARGE_BYTES]
    if not large:
        return "No sum above 1 MB is short enough to be checked here."
    texts = [
        f"{name}: median {statistics.median(errors):.0%}, worst {max(errors):.0%}"
        for name, errors in (
            ("by a, b, g", [abs(c.formula_error) for c in large if c.algorithm != "backend"]),
            ("as corrected", [abs(c.error) for c in large]),
        )
        if errors
    ]
    return f"Error above 1 MB: {'; '.join(texts)}."
