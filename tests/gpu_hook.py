# python tests/gpu_hook.py FILE
"""What the hook costs on one card: steps of DDP alone, with `none` and with `int8`, in turns.

One rank trains models of some seventy million parameters, in float32 whose products are made by
tensor cores where there are any. A world of one sends nothing: what a step takes longer than DDP's
is what compressa's Python and its kernels cost, beside forward and backward passes. Of each turn
the GPU has done all before the clock is read. A ratio to DDP is the median of those of the rounds,
in which each method has its turn, another one first each time.

Without a GPU, the small perceptron of `python -m benchmarks steps` trains over Gloo, which tries
all of this but says nothing of a card. FILE has the rows, and which targets are met.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from rich.console import Console

from benchmarks.steps.models import LARGE_MODELS, MODELS
from benchmarks.steps.plan import DDP, NONE, Method
from benchmarks.steps.ratios import ratio
from benchmarks.steps.training import Training
from benchmarks.timing import Samples
from harness.records import Positive, Spread
from harness.tables import Target, Verdict, laid_out, table_of, verdicts_table

METHODS = (DDP, NONE, Method.ours("int8", "hook"))
OF_DDP: Mapping[str, Target] = {
    method.name: Target("step over DDP's", most, shown="{:.3f}", asked="<= {:.2f}")
    for method, most in zip(METHODS[1:], (1.01, 1.03), strict=True)
}
STEPS, ROUNDS, WARM_STEPS = 10, 12, 20


class Step(Spread):
    """A step of one method; `rounds_s` with the same index were measured side by side."""

    model: str
    device: str
    parameters: int
    samples: int
    method: str
    rounds_s: tuple[Positive, ...]
    of_ddp: Positive


def measured(model: str, device: str) -> list[Step]:
    """Train a model by each method in turns; return what their steps take.

    Raises:
        ArithmeticError: A loss is not finite.
    """
    training = Training()
    parameters = training.begin(model, device)["parameters"]
    for method in METHODS:
        training.open(method)
        training.train(method, WARM_STEPS)
    told: dict[str, list[float]] = {method.name: [] for method in METHODS}
    for number in range(ROUNDS):
        first = number % len(METHODS)
        for method in METHODS[first:] + METHODS[:first]:
            told[method.name].append(training.train(method, STEPS)["step_s"])
    for method in METHODS:
        training.check(method)
    training.close()
    samples = {**MODELS, **LARGE_MODELS}[model].samples
    return [
        Step(
            model=model,
            device=device,
            parameters=parameters,
            samples=samples,
            method=name,
            **Samples(tuple(rounds_s)).spread(),
            rounds_s=tuple(rounds_s),
            of_ddp=ratio(rounds_s, told[DDP.name]),
        )
        for name, rounds_s in told.items()
    ]


def verdicts(steps: Sequence[Step]) -> Iterator[Verdict]:
    """Judge the steps with the hook."""
    for step in steps:
        if step.method in OF_DDP:
            yield OF_DDP[step.method].judged((step.model,), step.of_ddp, step.method)


def written(steps: Sequence[Step], path: Path) -> None:
    """Write rows, and what is met."""
    found = {
        "steps": [step.model_dump() for step in steps],
        "verdicts": [verdict._asdict() for verdict in verdicts(steps)],
    }
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def show(steps: Sequence[Step]) -> None:
    """Print what steps take, and what is met."""
    columns: dict[str, Callable[[Step], str]] = {
        "model": lambda step: step.model,
        "method": lambda step: step.method,
        "ms": lambda step: f"{1e3 * step.median_s:.3f}",
        "p20 to p80": lambda step: f"{1e3 * step.p20_s:.3f} to {1e3 * step.p80_s:.3f}",
        "of DDP": lambda step: f"{step.of_ddp:.3f}",
    }
    console = Console()
    console.print(laid_out(table_of("", steps, columns, frozenset({"ms", "of DDP"}))))
    console.print(laid_out(verdicts_table(verdicts(steps), "model")))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure all models, and keep what is known after each."""
    parser = argparse.ArgumentParser(description="Compare steps with the hook with those of DDP.")
    parser.add_argument("file", type=Path, metavar="FILE", help="gets the rows")
    path, steps = parser.parse_args(arguments).file, list[Step]()
    if torch.cuda.is_available():
        device, models, backend = "cuda:0", list(LARGE_MODELS), "nccl"
        torch.cuda.set_device(0)
        torch.set_float32_matmul_precision("high")
    else:
        device, models, backend = "cpu", ["mlp"], "gloo"
        torch.set_num_threads(1)
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    for model in models:
        steps += measured(model, device)
        written(steps, path)
    show(steps)
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
