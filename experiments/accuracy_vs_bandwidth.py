# python experiments/accuracy_vs_bandwidth.py --plan demo --out results/demo
# python experiments/accuracy_vs_bandwidth.py --task digits --compressor int8 --link 100mbit
"""What compression does to accuracy and to time, on hosts joined by a network of your choice.

Brings up a testbed of several hosts on this machine, trains each task once per compressor and
seed, times a step per link and compressor, and writes one JSON line per cell, a table, plots and
one HTML report. Two dense baselines are always run: plain DDP and PyTorch's own fp16 hook.

Compressors are the baselines ddp-float32, torch-fp16 and torch-powersgd, the names of the files in
experiments/configs, tables under configs.NAME in a plan, or paths of TOML files. Links are
written as 100mbit or 1gbit. What a plan file says is overruled by the options that are given.

Example: python experiments/accuracy_vs_bandwidth.py --plan demo --out results/demo
"""

from __future__ import annotations

import signal
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import typer
from lab.driver import Driver
from lab.plan import PLANS, Plan
from lab.progress import LiveProgress
from lab.records import CELLS_FILE, DDP_FLOAT32, TORCH_FP16, UNSHAPED, set_aside
from lab.report import render
from lab.tasks import TASKS
from pydantic import ValidationError
from rich.console import Console

from compressa.errors import BackendUnavailable, CompressaError
from compressa.testbed import open_testbed

Kind = Literal["auto", "netns", "loopback"]
DENSE = [DDP_FLOAT32, TORCH_FP16]


def _plan(plan: str | None, overrides: dict[str, Any]) -> Plan:
    """The plan file, if there is one, with the options that are given over it."""
    given = {name: value for name, value in overrides.items() if value not in (None, [])}
    if plan is not None:
        named = PLANS / f"{plan}.toml"
        return Plan.load(named if named.is_file() else Path(plan), **given)
    return Plan.model_validate({"tasks": [{"name": "digits"}], "compressors": ["int8"]} | given)


def _overrides(task: list[str], steps: int | None, compressor: list[str]) -> dict[str, Any]:
    overrides: dict[str, Any] = {}
    if compressor:
        overrides["compressors"] = list(dict.fromkeys(DENSE + compressor))
    if task:
        length = {} if steps is None else {"train_steps": steps}
        overrides["tasks"] = [{"name": name, **length} for name in task]
        overrides["end_to_end"] = ()
    elif steps is not None:
        raise typer.BadParameter("--steps needs --task; a plan's tasks have steps of their own")
    return overrides


def run(
    plan: Annotated[
        str | None, typer.Option(help="A plan in experiments/plans by name, or a TOML file.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("results/run"),
    task: Annotated[
        list[str] | None, typer.Option(help=f"Repeatable: {', '.join(sorted(TASKS))}.")
    ] = None,
    compressor: Annotated[
        list[str] | None, typer.Option(help="Repeatable; the dense baselines are added.")
    ] = None,
    link: Annotated[
        list[str] | None, typer.Option(help="Repeatable, e.g. 100mbit or 10mbit+100ms.")
    ] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Repeatable.")] = None,
    steps: Annotated[int | None, typer.Option(help="Training steps; 0 for timing only.")] = None,
    time_steps: Annotated[int | None, typer.Option(help="Timed steps per cell.")] = None,
    hosts: Annotated[int | None, typer.Option(help="Number of hosts, one rank on each.")] = None,
    testbed: Annotated[Kind, typer.Option(help="Namespaces, plain processes, or the best.")] = (
        "auto"
    ),
    report: Annotated[bool, typer.Option(help="Print a table, draw plots, write a report.")] = True,
) -> None:
    """Run a plan and report it. See the first lines of this file for examples."""
    console = Console()
    # Ended by a supervisor is ended by Ctrl-C: take down, and report what there is.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        overrides = _overrides(task or [], steps, compressor or [])
        options = {"links": link, "seeds": seed, "time_steps": time_steps, "hosts": hosts}
        planned = _plan(plan, overrides | options)
        failures = _execute(planned, out, testbed, console, report)
    except (CompressaError, OSError, ValidationError) as error:
        console.print(_words(error), style="red", highlight=False, markup=False)
        raise typer.Exit(1) from error
    raise typer.Exit(1 if failures else 0)


def _words(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return f"{type(error).__name__}: {error}"
    mistakes = [(".".join(map(str, e["loc"])) or "plan", e["msg"]) for e in error.errors()]
    return "".join(f"{place}: {message}\n" for place, message in mistakes)


def _execute(plan: Plan, out: Path, testbed: Kind, console: Console, report: bool) -> int:
    """Runs the plan; whatever happens, what there is by then is reported."""
    if plan.device == "cuda" and not torch.cuda.is_available():
        raise BackendUnavailable(
            'the plan says device = "cuda", and torch sees no GPU here; install a CUDA build of '
            'torch on a machine with one, or set device = "cpu"'
        )
    out.mkdir(parents=True, exist_ok=True)
    kept = set_aside(out)
    if kept is not None:
        console.print(f"Cells of an earlier run are in {kept}.", highlight=False, markup=False)
    try:
        with LiveProgress(console) as watcher:
            driver = Driver(plan, out, watcher)
            driver.run(partial(open_testbed, link=UNSHAPED, kind=testbed, self_check=False))
    finally:
        if report and (out / CELLS_FILE).exists():
            render(out, console)
    return len(driver.failures)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, help=__doc__)
    app.command(help=__doc__)(run)
    sys.exit(app())
