"""`compressa config`: check, show and describe configurations."""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from compressa.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn

    from compressa.compressor import Compressor
    from compressa.config import Config
    from compressa.parameters import ParameterInfo

config_app = typer.Typer(
    help="Check, show and describe configurations.",
    epilog="Example: compressa config check compressa.toml",
    no_args_is_help=True,
)

_MOST_RANKS = 1024  # each of which is gone through
_DENSE = "none"
_File = Annotated[Path, typer.Argument(metavar="FILE", help="A configuration in TOML.")]


@config_app.command(
    epilog="Example: compressa config check compressa.toml --model mynet:build_model"
)
def check(
    file: _File,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:CALLABLE",
            help="Check the rules against the model that this returns, and show who compresses it, "
            "with the settings that are not the defaults.",
        ),
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option(
            min=2,
            max=_MOST_RANKS,
            help="Warn of what takes more bytes on so many ranks than a dense ring: of the "
            "model, or else of a matrix of 1000 x 1000 under each compressor.",
        ),
    ] = None,
) -> None:
    """Say OK, or list every mistake."""
    from compressa.config import load_config, parameter_infos

    config = load_config(file)
    parameters = None if model is None else parameter_infos(build_model(model))
    if parameters is not None:
        _show_assignment(config, parameters)
    if ranks is not None:
        _warn_of_traffic(config, parameters, ranks)
    _warn_of_missing_files(config)
    typer.echo(f"OK: {file}")


@config_app.command(epilog="Example: compressa config show compressa.toml > complete.toml")
def show(
    file: _File,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of TOML.")] = False,
) -> None:
    """Print all settings, defaults filled in."""
    from compressa.config import config_toml, load_config

    config = load_config(file)
    if as_json:
        typer.echo(json.dumps(config.model_dump(mode="json"), indent=2))
    else:
        typer.echo(config_toml(config), nl=False)


@config_app.command(epilog="Example: compressa config schema > compressa.schema.json")
def schema() -> None:
    """Print the JSON Schema, for editors that complete and check TOML."""
    from compressa.config import config_schema

    typer.echo(json.dumps(config_schema(), indent=2))


def build_model(factory: str) -> nn.Module:
    """Return the model that `module:callable` makes.

    Raises:
        ConfigError: There is no such callable, it fails, or what it returns is no model.
    """
    from torch import nn

    module_name, _, attribute = factory.partition(":")
    if not module_name or not attribute:
        raise ConfigError(
            f'--model must be "module:callable", such as mynet:build, not "{factory}"'
        )
    # As `python -m` does: models mostly live beside the configuration.
    sys.path.insert(0, "")
    try:
        made: Any = getattr(importlib.import_module(module_name), attribute)()
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError(f"--model {factory}: could not make the model: {reason}") from error
    finally:
        sys.path.remove("")
    if not isinstance(made, nn.Module):
        raise ConfigError(f"--model {factory}: returned {type(made).__name__}, not an nn.Module")
    return made


def _show_assignment(config: Config, parameters: Sequence[ParameterInfo]) -> None:
    """Print who compresses how much, and warn of rules without effect."""
    from compressa.config import assign

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assigned = assign(config, parameters)
    for warning in caught:
        typer.echo(f"warning: {warning.message}", err=True)
    counts: Counter[str] = Counter()
    elems: Counter[str] = Counter()
    for parameter in parameters:
        text = _describe(assigned[parameter.name], parameter)
        counts[text] += 1
        elems[text] += parameter.elems
    _print_table([(text, counts[text], elems[text]) for text in counts])


def _warn_of_traffic(
    config: Config, parameters: Sequence[ParameterInfo] | None, ranks: int
) -> None:
    """Warn of compressors under which the busiest rank's bytes exceed those of a dense ring."""
    from compressa.config import assign
    from compressa.traffic import ratios

    for each, own in _cases(config, parameters):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of rules without effect: the model's table warns
            compressors = assign(each, own)
        for compressor, ratio in ratios(each, own, compressors, ranks).items():
            text = _describe(compressor, own[0])
            if ratio < 1.0 and text != _DENSE:
                typer.echo(
                    f"warning: {text}: on {ranks} ranks the busiest one has {1 / ratio:.2f} times "
                    "the bytes of a dense ring in float32; choose what can be summed or scattered",
                    err=True,
                )


def _warn_of_missing_files(config: Config) -> None:
    """Warn of files that training will read and that are not here, seen from this folder."""
    exchange = config.exchange
    for name, path, fix in (
        ("link", exchange.link, "`compressa link` writes it; rank 0 reads it"),
        ("secret_file", exchange.secret_file, "every rank reads its own"),
    ):
        if path is not None and not Path(path).is_file():
            typer.echo(f"warning: exchange.{name}: there is no file {path} here; {fix}", err=True)


def _cases(
    config: Config, parameters: Sequence[ParameterInfo] | None
) -> Iterator[tuple[Config, Sequence[ParameterInfo]]]:
    """Yield the model; without one, a matrix under the main compressor and that of each rule."""
    from compressa.facts import PARAMETER

    if parameters is not None:
        yield config, parameters
        return
    yield config.model_copy(update={"rules": ()}), [PARAMETER]
    for rule in config.rules:
        feedback = config.feedback.model_copy(
            update={"kind": rule.feedback or config.feedback.kind}
        )
        changed = {"rules": (), "compressor": rule.compressor, "feedback": feedback}
        yield config.model_copy(update=changed), [PARAMETER]


def _describe(compressor: Compressor, parameter: ParameterInfo) -> str:
    """Return in words what compresses a parameter after any warm-up."""
    from compressa.compressor import Wrapper

    last = max(compressor.breakpoints, default=0)
    settled = compressor.for_parameter(parameter).at(last)
    names, inner = [], settled
    while isinstance(inner, Wrapper):
        names.append(inner.name.replace("_", " "))
        inner = inner.inner
    return ", ".join([" ".join([inner.name, *_changed_settings(inner)]), *reversed(names)])


def _changed_settings(compressor: Compressor) -> Iterator[str]:
    """Yield the settings that are not the defaults: all of them would hide these."""
    for field in dataclasses.fields(compressor):
        made = field.default_factory
        default = field.default if made is dataclasses.MISSING else made()
        value = getattr(compressor, field.name)
        if value != default:
            yield f"{field.name}={value}"


def _print_table(rows: list[tuple[str, int, int]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("compressor", box=None)
    table.add_column("parameters", justify="right")
    table.add_column("elements", justify="right")
    for text, count, elems in rows:
        table.add_row(text, f"{count:,}", f"{elems:,}")
    Console().print(table)
