"""Runs the experiment scripts of a source checkout, as files of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import typer

from compressa.errors import BackendUnavailable

_NEEDED = ("sklearn", "matplotlib", "plotly", "jinja2")
_GRACE_S = 30.0


def script(name: str) -> Path:
    """Return the path of an experiment script.

    Raises:
        BackendUnavailable: This installation has no experiments, or lacks what they need.
    """
    path = Path(__file__).resolve().parents[2] / "experiments" / name
    if not path.is_file():
        raise BackendUnavailable(
            "the experiments are not part of an installed package; clone the repository and run "
            "`make install` there"
        )
    missing = [package for package in _NEEDED if find_spec(package) is None]
    if missing:
        raise BackendUnavailable(
            f"the experiments need {', '.join(missing)}; install them with "
            "`pip install 'compressa[experiments]'`"
        )
    return path


def run_script(name: str, arguments: Sequence[str]) -> None:
    """Run a script and exit with its status; Ctrl-C reaches it, and it cleans up first."""
    command = [sys.executable, str(script(name)), *arguments]
    with subprocess.Popen(command) as process:
        try:
            status = process.wait()
        except KeyboardInterrupt:
            # The terminal has interrupted the script as well; give it time to tidy up.
            process.wait(_GRACE_S)
            status = 130
    raise typer.Exit(status)
