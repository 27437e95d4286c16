"""`python -m benchmarks`: measure compressors, exchanges, schedules, steps and strategies."""

from __future__ import annotations

import typer

from benchmarks.diloco import diloco
from benchmarks.exchange.command import exchange
from benchmarks.frames import frames
from benchmarks.fsdp import fsdp
from benchmarks.hogwild import hogwild
from benchmarks.integrity import integrity
from benchmarks.kernels.command import kernels
from benchmarks.schedule.command import schedule
from benchmarks.sparse_sums import sparse_sums
from benchmarks.steps.command import steps
from benchmarks.walk import walk
from compressa.cli import errors_told

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
    help="Measure what compressors, exchanges, schedules and whole steps cost.",
)
app.command(epilog="Example: python -m benchmarks kernels --case 'int8*' --json int8.json")(kernels)
app.command(
    epilog="Example: python -m benchmarks exchange --hosts 4 --link 1gbit --what 'r*' --json r.json"
)(exchange)
app.command(
    epilog="Example: python -m benchmarks schedule --part steps --compressor bf16 --ratio 1"
)(schedule)
app.command(
    epilog="Example: python -m benchmarks steps --network 2x1gbit --model mlp --json s.json"
)(steps)
app.command(epilog="Example: python -m benchmarks diloco --link 100mbit --every 20 --rounds 1")(
    diloco
)
app.command(epilog="Example: python -m benchmarks fsdp --link 100mbit --turns 2 --steps 5")(fsdp)
app.command(epilog="Example: python -m benchmarks hogwild --turns 1 --steps 500")(hogwild)
app.command(epilog="Example: python -m benchmarks sparse-sums --elems 20000 --ranks 4")(sparse_sums)
app.command(epilog="Example: python -m benchmarks integrity --layers 4 --json i.json")(integrity)
app.command(epilog="Example: python -m benchmarks frames --what int8 --pairs 10")(frames)
app.command(epilog="Example: python -m benchmarks walk --elems 4096 --functions")(walk)

if __name__ == "__main__":
    with errors_told():
        app(prog_name="python -m benchmarks")
