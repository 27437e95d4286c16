"""`compressa run`: an experiment of one's own."""

from __future__ import annotations

import typer

from compressa.cli._experiments import run_script

run_app = typer.Typer()

_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}


@run_app.command(
    context_settings=_PASS_ON,
    epilog="Example: compressa run --task digits --compressor int8 --link 100mbit",
)
def run(context: typer.Context) -> None:
    """Run experiments: tasks, compressors, links, seeds and hosts of your choice.

    Takes the options of experiments/accuracy_vs_bandwidth.py: --plan, --out, --task,
    --compressor, --link, --seed, --steps, --time-steps, --hosts, --testbed. The first six
    may be left out; --task, --compressor, --link and --seed may be given several times.
    """
    run_script("accuracy_vs_bandwidth.py", context.args)
