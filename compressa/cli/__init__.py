"""The command `compressa`.

A subcommand is one file and one line in `COMMANDS`. Only the subcommand that is asked for is
imported, so that `--help` is quick.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from compressa.errors import CompressaError

if TYPE_CHECKING:
    import typer

COMMANDS = {
    "init": "Write a configuration to begin with, for a model and a link.",
    "config": "Check, show and describe configurations.",
    "explain": "Which exchanges a configuration means, and how long they should take.",
    "link": "What this network is like, for exchange.link.",
    "trace": "What a recorded trace of training amounts to.",
    "simulate": "How long a measured step would take on other networks, by other schedules.",
    "compressors": "What there is to choose from, and the page of each.",
    "testbed": "Hosts on a shaped network, on one machine.",
    "doctor": "Look at this machine and installation, and say what to do.",
}
"""What `--help` says of each subcommand; `NAME.py` here has its Typer app, `NAME_app`."""

_EPILOG = "Example: compressa config check compressa.toml"


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line, and exit.

    The exit status is 1 after an error of compressa's own (one sentence on stderr), 2 after
    wrong usage, 130 after Ctrl-C.

    Args:
        arguments: What to run; `sys.argv` without the program's name if left out.
    """
    from typer.main import get_command

    given = list(sys.argv[1:] if arguments is None else arguments)
    with errors_told():
        get_command(build_app(given))(args=given, prog_name="compressa")
    sys.exit(0)


@contextmanager
def errors_told() -> Iterator[None]:
    """Exit with status 1 and one sentence on stderr after an error of compressa's; see `main`."""
    try:
        yield
    except CompressaError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def build_app(arguments: Sequence[str]) -> typer.Typer:
    """Return the whole command, with the subcommand that the arguments ask for.

    Args:
        arguments: The command line without the program's name.
    """
    import typer

    app = typer.Typer(
        name="compressa",
        help="Gradient compression for data-parallel training on slow networks.",
        epilog=_EPILOG,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_show_locals=False,
    )
    # Without a callback of its own, Typer would fold a lone subcommand into the program.
    app.callback()(_nothing)
    asked = next((word for word in arguments if not word.startswith("-")), None)
    for name, text in COMMANDS.items():
        if name == asked:
            module = importlib.import_module(f"compressa.cli.{name}")
            _add(app, name, getattr(module, f"{name}_app"))
        else:
            app.command(name, help=text)(_nothing)
    return app


def _add(app: typer.Typer, name: str, inner: typer.Typer) -> None:
    """Add a subcommand; an app of one command becomes that command."""
    alone = len(inner.registered_commands) == 1 and not inner.registered_callback
    if alone and not inner.registered_groups:
        command = inner.registered_commands[0]
        command.name = name
        app.registered_commands.append(command)
    else:
        app.add_typer(inner, name=name)


def _nothing() -> None:
    """Stand for a command that was not asked for, and is only listed."""
