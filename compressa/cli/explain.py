"""`compressa explain`: what a configuration will exchange, by which algorithm, and why."""

from __future__ import annotations

import warnings
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from compressa.cli._tables import figures_table, say
from compressa.errors import ConfigError

if TYPE_CHECKING:
    from compressa.config import Config
    from compressa.engine.start.link_file import LinkFile
    from compressa.forecast import Exchange, Forecast

explain_app = typer.Typer()

_MOST_RANKS = 1024  # as of simulations: each rank's buffers are laid out
_MOST_BYTES = 4 << 30
_SIZES = ("64KiB", "1MiB", "16MiB", "100MiB")


_File = Annotated[Path, typer.Argument(metavar="FILE", help="A configuration in TOML.")]
_Model = Annotated[
    str | None,
    typer.Option(metavar="MODULE:CALLABLE", help="Show the exchanges of what this returns."),
]
_Sizes = Annotated[
    list[str] | None,
    typer.Option(
        help='Show those of gradients of so many bytes of float32, such as "16MiB"; several '
        "times. Some from 64 KiB to 100 MiB if neither is given."
    ),
]
_Ranks = Annotated[
    int | None,
    typer.Option(min=2, max=_MOST_RANKS, help="How many ranks; as many as were measured."),
]
_Link = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="What `compressa link` has written, instead of exchange.link."
    ),
]


@explain_app.command(
    epilog="Example: compressa explain compressa.toml --link link.json --ranks 8 --size 16MiB"
)
def explain(
    file: _File,
    model: _Model = None,
    size: _Sizes = None,
    ranks: _Ranks = None,
    link: _Link = None,
) -> None:
    """Print how gradients cross the network, and the predicted time of each exchange.

    What a step exchanges after any warm-up: which compressor asks for what, by which algorithm,
    and what the same gradients would take uncompressed; then all algorithms among which
    algorithm = "auto" chooses, with the numbers behind their times. Without a measured link it
    shows what is exchanged only.

    Predicted is the network's part: encoding and decoding come on top.
    """
    from compressa.config import load_config
    from compressa.forecast import Forecast

    config = load_config(file)
    figures = _figures(config, link)
    count = _count(ranks, figures)
    costs = None if figures is None else figures.costs_at(config.schedule.pace_bits_per_s)
    forecast = Forecast(config, count, costs)
    exchanges = _exchanges(forecast, model, size)
    say(_headline(figures, count))
    console = Console()
    console.print(_exchange_table(exchanges))
    for size_bytes in sorted({exchange.size_bytes for exchange in exchanges if exchange.plain}):
        if costs is not None:
            console.print(_candidate_table(forecast, size_bytes))


def _count(ranks: int | None, figures: LinkFile | None) -> int:
    """Return how many ranks there are to be."""
    count = ranks or (figures.ranks if figures is not None else None)
    if count is None:
        raise ConfigError("--ranks is needed where no link is measured: say how many there will be")
    if count > _MOST_RANKS:
        raise ConfigError(f"{count} ranks were measured: give --ranks, at most {_MOST_RANKS}")
    return count


def _figures(config: Config, link: Path | None) -> LinkFile | None:
    from compressa.engine.start.link_file import read

    if link is not None:
        return read(link, "--link: ")
    return None if config.exchange.link is None else read(config.exchange.link, "exchange.link: ")


def _exchanges(forecast: Forecast, model: str | None, sizes: list[str] | None) -> Counter[Exchange]:
    """Return the rounds of a model, or those of sizes, each by itself."""
    from compressa.cli.config import build_model
    from compressa.config import assign, parameter_infos
    from compressa.forecast import parameter_of

    if model is not None and sizes:
        raise ConfigError("--model and --size: give one of them")
    groups = [[parameter_of(_bytes(text))] for text in sizes or _SIZES]
    if model is not None:
        groups = [list(parameter_infos(build_model(model)))]
    found: Counter[Exchange] = Counter()
    for parameters in groups:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of rules that match nothing: `config check` tells
            compressors = assign(forecast.config, parameters)
        found += forecast.exchanges(parameters, compressors)
    return found


def _bytes(text: str) -> int:
    from compressa.config.values import parse_bytes

    try:
        size_bytes = parse_bytes(text)
    except ValueError as error:
        raise ConfigError(f"--size {error}") from error
    if not 4 <= size_bytes <= _MOST_BYTES or size_bytes % 4:
        raise ConfigError(
            f"--size: {text} is no size of float32: give a multiple of 4, at most 4 GiB"
        )
    return size_bytes


def _headline(figures: LinkFile | None, ranks: int) -> str:
    if figures is None:
        return (
            f"{ranks} ranks, no link measured: `compressa link --out FILE` measures it, "
            "--link FILE or exchange.link names it."
        )
    return (
        f"{ranks} ranks. Measured with {figures.ranks} on {figures.hosts} hosts over "
        f"{figures.transport}: a = {1e6 * figures.message_s:.0f} us a message, "
        f"b = {1e9 * figures.byte_s:.3g} ns a byte ({1e-6 / figures.byte_s:,.0f} MB/s), "
        f"g = {1e9 * figures.reduce_s:.2g} ns a byte added."
    )


def _exchange_table(exchanges: Counter[Exchange]) -> Table:
    titles = ("rounds", "gradient", "payload", "ms each", "dense ms", "gain")
    table = figures_table(["compressor", "exchange"], titles)
    for exchange, count in exchanges.items():
        gain = "-"
        if exchange.seconds and exchange.dense_s:
            gain = f"{exchange.dense_s / exchange.seconds:.1f}"
        table.add_row(
            exchange.compressor,
            exchange.way,
            str(count),
            _size(exchange.gradient_bytes),
            _size(exchange.size_bytes),
            _ms(exchange.seconds),
            _ms(exchange.dense_s),
            gain,
        )
    return table


def _candidate_table(forecast: Forecast, size_bytes: int) -> Table:
    titles = ("\nmessages", "\nbytes", "\nms by a, b, g", "\nmeasured over it", "\nms")
    table = figures_table([f"\nsum of {_size(size_bytes)}"], titles)
    for candidate in forecast.candidates(size_bytes):
        own = candidate.messages is None or candidate.port_bytes is None
        table.add_row(
            candidate.name,
            "-" if own else str(candidate.messages),
            "-" if own else f"{candidate.port_bytes:,.0f}",
            _ms(candidate.formula_s),
            f"{candidate.factor:.2f}",
            _ms(candidate.seconds),
        )
    return table


def _size(size_bytes: int) -> str:
    units = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
    for unit, name in units:
        if size_bytes >= unit:
            return f"{size_bytes / unit:.4g} {name}"
    return f"{size_bytes} B"


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:,.3g}"
