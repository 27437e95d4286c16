"""`compressa init`: writes a configuration to begin with, which says why each line is there."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from compressa.errors import ConfigError

if TYPE_CHECKING:
    from compressa.collectives.choice import Costs
    from compressa.recommend import Model

init_app = typer.Typer()

_T = TypeVar("_T")
_MOST_RANKS = 1024
_LATENCY_S = 50e-6  # of a switched network, to which a link's own delay is added
_ADD_S = 2e-10
_COUNT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmb]?)\s*", re.IGNORECASE)
_THOUSANDS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9}

_Link = Annotated[
    str | None,
    typer.Option(
        metavar="RATE|FILE",
        help='Of each host: "100mbit", "10mbit+100ms", or what `compressa link` has written.',
    ),
]
_Ranks = Annotated[int | None, typer.Option(min=2, max=_MOST_RANKS, help="How many there are.")]
_Parameters = Annotated[
    str | None, typer.Option(metavar="COUNT", help='How many the model has: "4.3M", "7B".')
]
_Model = Annotated[
    str | None,
    typer.Option(metavar="MODULE:CALLABLE", help="Count those of what this returns instead."),
]
_Accuracy = Annotated[
    str | None, typer.Option(metavar="careful|usual|bold", help="How much may be lost; usual.")
]
_ComputeMs = Annotated[
    float | None, typer.Option(min=0.0, help="Milliseconds that a step takes to compute, if known.")
]
_Out = Annotated[Path, typer.Option(metavar="FILE", help="Where to write it.")]
_Force = Annotated[bool, typer.Option("--force", help="Overwrite the file, if it is there.")]


@init_app.command(epilog="Example: compressa init --link 100mbit --ranks 4 --parameters 4.3M")
def init(
    link: _Link = None,
    ranks: _Ranks = None,
    parameters: _Parameters = None,
    model: _Model = None,
    accuracy: _Accuracy = None,
    compute_ms: _ComputeMs = None,
    out: _Out = Path("compressa.toml"),
    force: _Force = False,
) -> None:
    """Write a configuration to begin with, for a model and a link.

    If link, ranks or parameters are not given, a terminal asks for all that is not. The compressor
    is chosen by predicted time, as `compressa explain` shows it, among those that lose no more than
    is allowed; the file says so.
    """
    from compressa.cli._starter import Question, starter
    from compressa.recommend import recommend

    _check_free(out, force)
    asking = None in (link, ranks, parameters or model)
    link = link or _asked("--link", "Link of each host, or a file of `compressa link`", "1gbit")
    costs = _costs(link)
    ranks = ranks or _asked("--ranks", "Number of ranks", 4, _rank_count)
    if model is None and parameters is None:
        parameters = _asked("--parameters", "Parameters of the model", "100M")
    whole = _model(parameters, model)
    if asking and accuracy is None:
        accuracy = typer.prompt("How much may be lost: careful, usual, bold", default="usual")
    level = _level(accuracy or "usual")
    if asking and compute_ms is None:
        compute_ms = typer.prompt("Milliseconds of computing in a step, if known", default=0.0)
    compute_ms = compute_ms or 0.0
    chosen = recommend(whole, costs, ranks, level, compute_ms / 1e3)
    question = Question(link, ranks, model, whole, compute_ms)
    _write(out, starter(chosen, question, out))
    typer.echo(f"{out}: {chosen.name}, of {', '.join(chosen.seconds)}. The file says why.")
    typer.echo(f"Next: compressa config check {out}")


def _check_free(out: Path, force: bool) -> None:
    """Ask before a file is overwritten; refuse where nobody can be asked."""
    if force or not out.exists():
        return
    if not sys.stdin.isatty():
        raise ConfigError(f"--out: {out} is there already; --force overwrites it")
    typer.confirm(f"{out} is there already. Overwrite it?", abort=True)


def _asked(option: str, question: str, usual: _T, read: Callable[[str], _T] | None = None) -> _T:
    """Ask in a terminal for what was not given; refuse where nobody can be asked."""
    if not sys.stdin.isatty():
        raise ConfigError(f"{option} is needed: nobody can be asked where there is no terminal")
    answer: _T = typer.prompt(question, default=usual, value_proc=read)
    return answer


def _rank_count(text: str) -> int:
    if not text.isdecimal() or not 2 <= int(text) <= _MOST_RANKS:
        raise typer.BadParameter(f"give a number from 2 to {_MOST_RANKS}")
    return int(text)


def _costs(link: str) -> Costs:
    """Return what sums take: as measured, or by the formulas for a rate and a delay."""
    from compressa.collectives.choice import Costs
    from compressa.collectives.cost import Link
    from compressa.engine.start.link_file import read
    from compressa.rates import data_bytes_per_s
    from compressa.testbed.link import LinkSpec

    if Path(link).is_file():
        return read(link, "--link: ").costs
    try:
        spec = LinkSpec.parse(link)
    except ConfigError as error:
        raise ConfigError(f"--link: there is no file {link!r}, and {error}") from None
    if spec.rate_bits_per_s is None:
        raise ConfigError('--link: give a rate such as "10gbit", or a file of `compressa link`')
    byte_s = 1 / data_bytes_per_s(spec.rate_bits_per_s)
    return Costs(Link(_LATENCY_S + spec.delay_s, byte_s, _ADD_S))


def _model(parameters: str | None, factory: str | None) -> Model:
    from compressa.recommend import Model

    if parameters is not None and factory is not None:
        raise ConfigError("--parameters and --model: give one of them")
    if factory is not None:
        from compressa.cli.config import build_model
        from compressa.config import parameter_infos

        return Model.of(parameter_infos(build_model(factory)))
    match = _COUNT.fullmatch(parameters or "")
    elems = round(float(match[1]) * _THOUSANDS[match[2].lower()]) if match else 0
    if not 1 <= elems <= 1 << 53:
        raise ConfigError(f'--parameters: give a number such as "4.3M" or "7B", not "{parameters}"')
    return Model(elems)


def _level(accuracy: str) -> str:
    from compressa.recommend import LEVELS

    if accuracy not in LEVELS:
        raise ConfigError(f'--accuracy: "{accuracy}" is not one of {", ".join(LEVELS)}')
    return accuracy


def _write(out: Path, text: str) -> None:
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--out: {out}: cannot be written: {error.strerror}") from error
