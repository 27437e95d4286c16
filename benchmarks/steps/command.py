"""`python -m benchmarks steps`: a training step of each method, beside computing and the wire."""

from __future__ import annotations

from typing import Annotated

import typer

from benchmarks.steps.models import MODELS
from benchmarks.steps.plan import COMPRESSED, NETWORKS, PARTS, Network, Settings
from benchmarks.steps.run import StepsBench
from benchmarks.steps.tables import shown
from harness.runner import JsonFile, Update, What, carry_out, given, parts_option

Compressors = Annotated[
    list[str] | None,
    typer.Option(help=f"Of ours, several times; {', '.join(COMPRESSED)} if left out."),
]
Networks = Annotated[
    list[str] | None,
    typer.Option(
        help="Hosts and their links, several times; "
        f"{', '.join(f'{network.hosts}x{network.link}' for network in NETWORKS)} if left out."
    ),
]
Models = Annotated[
    list[str] | None,
    typer.Option(help=f"What is trained, several times: {', '.join(MODELS)}; all if left out."),
]
Budget = Annotated[float, typer.Option(min=0.0, help="Seconds of a method's turn, about.")]
Rounds = Annotated[int, typer.Option(min=1, help="How often each method takes its turn.")]


def steps(
    part: Annotated[list[str] | None, parts_option(PARTS)] = None,
    compressor: Compressors = None,
    network: Networks = None,
    model: Models = None,
    what: What = "*",
    json_file: JsonFile = None,
    update: Update = None,
    budget: Budget = 0.4,
    rounds: Rounds = 5,
) -> None:
    """Time training steps: computing alone, DDP, PyTorch's PowerSGD and ours, in turns in one run.

    Each of our compressors trains by the hook and overlapped, `none` by the hook; all methods take
    turns in the same processes, which have one thread each and share two cores. F is computing
    alone, W the bytes on the busiest link at line rate, K what our kernels must move at the
    measured bandwidth of memory. At the end replicas must be equal to the bit, and losses finite.
    epfml/powersgd is measured too where it can be imported; no package registry has it.

    Takes some half an hour. Needs network namespaces: Linux, and root or user namespaces.
    """
    networks = [Network.parse(text) for text in network or ()]
    settings = Settings(
        pattern=what,
        budget_s=budget,
        rounds=rounds,
        **given(parts=part, compressors=compressor, networks=networks, models=model),
    )
    carry_out(StepsBench(settings), shown, json_file, update)
