"""`python -m benchmarks schedule`: steps whose communication overlaps with computing."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from benchmarks.schedule.plan import LINKS, PARTS, RATIOS, Settings
from benchmarks.schedule.run import ScheduleBench
from benchmarks.schedule.tables import shown
from compressa.testbed import LinkSpec
from harness.runner import JsonFile, Update, What, carry_out, given, parts_option

Compressors = Annotated[
    list[str] | None,
    typer.Option(help=f"Of the steps, several times: {', '.join(LINKS)}; all if left out."),
]
Ratios = Annotated[
    list[float] | None,
    typer.Option(
        help="Of communication to computing, several times; "
        f"{', '.join(f'{ratio:g}' for ratio in RATIOS)} if left out."
    ),
]
OneLink = Annotated[
    str | None, typer.Option(help="Speed of each link, instead of the compressors' own.")
]
Quick = Annotated[bool, typer.Option("--quick", help="int8 at C = F + B alone: ten minutes.")]
Budget = Annotated[float | None, typer.Option(min=0.0, help="Seconds for each case of the steps.")]
Rounds = Annotated[int, typer.Option(min=1, help="Rounds of each case of the steps at least.")]

_QUICK: dict[str, Any] = {"parts": ["steps"], "compressors": ["int8"], "ratios": [1.0]}
_BUDGET_S, _QUICK_BUDGET_S = 40.0, 15.0


def schedule(
    part: Annotated[list[str] | None, parts_option(PARTS)] = None,
    compressor: Compressors = None,
    ratio: Ratios = None,
    link: OneLink = None,
    what: What = "*",
    json_file: JsonFile = None,
    update: Update = None,
    quick: Quick = False,
    budget: Budget = None,
    rounds: Rounds = 3,
) -> None:
    """Time training steps whose communication overlaps with computing, side by side in one run.

    Two hosts, one rank with one thread on each, a perceptron of equal layers. F and B are measured
    without communication and C without computing, between the steps; the ideal step is the larger
    of F + B and C. Beside ours is DDP at the best of three sizes of its buckets. A case of the
    steps takes some ten minutes, one of a single method four, all other parts together three.

    Needs network namespaces: Linux, and root or user namespaces.
    """
    settings = Settings(
        link=None if link is None else str(LinkSpec.parse(link)),
        pattern=what,
        least_rounds=rounds,
        budget_s=(_QUICK_BUDGET_S if quick else _BUDGET_S) if budget is None else budget,
        **(_QUICK if quick else {}) | given(parts=part, compressors=compressor, ratios=ratio),
    )
    carry_out(ScheduleBench(settings), shown, json_file, update)
