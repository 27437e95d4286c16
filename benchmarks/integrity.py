"""What it costs to compare replicas: the same steps with and without, in turn, in one run.

    torchrun --nproc-per-node 2 -m benchmarks.integrity

Replicas are compared in every step here, so that the cost can be told from noise; as configured by
default, one step in a hundred bears it. Perceptrons of 4.2 and 25 million parameters, int8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.paired import Overhead, overhead, report
from compressa.config import Config
from compressa.hooks import Handle, register_comm_hook

_WIDTH, _BATCH = 1024, 64
_LAYERS = (4, 24)
_WARM_STEPS, _PAIRS, _STEPS = 3, 10, 3


def measured(layers: int, batch: int, pairs: int = _PAIRS) -> tuple[Overhead, float]:
    """Train two copies of a model in turn, of which one is compared in each step.

    Args:
        layers: Square layers of the perceptron.
        batch: Inputs of a step.
        pairs: How often to compare times.

    Returns:
        What it costs when done in every step, and the share of a run that it is by default.
    """
    settings = {every: {"compressor": "int8", "integrity": {"every": every}} for every in (0, 1)}
    trained = {every: perceptron(settings[every], layers, batch) for every in settings}
    current = [0]

    def choose(path: Path | None) -> None:
        dist.barrier()
        current[0] = int(path is not None)

    for _ in range(_WARM_STEPS):
        for step, _ in trained.values():
            step()
    found = overhead(lambda: trained[current[0]][0](), choose, Path(), pairs=pairs, steps=_STEPS)
    for _, handle in trained.values():
        handle.close()
    return found, (found.ratio - 1) / Config().integrity.every


def perceptron(
    settings: Mapping[str, Any], layers: int, batch: int
) -> tuple[Callable[[], None], Handle]:
    """Return what trains a step of a perceptron with a hook, and its handle."""
    torch.manual_seed(0)
    model = DistributedDataParallel(
        nn.Sequential(*(nn.Linear(_WIDTH, _WIDTH) for _ in range(layers)))
    )
    handle = register_comm_hook(model, settings)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    inputs = torch.randn(batch, _WIDTH)

    def step() -> None:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()

    return step, handle


def lines() -> Iterator[str]:
    """Measure each model, and say what was found."""
    for layers in _LAYERS:
        found, share = measured(layers, _BATCH)
        yield (
            f"{layers * (_WIDTH + 1) * _WIDTH / 1e6:.1f} M parameters: step "
            f"{1e3 * found.off_s:.1f} ms; compared in every step, {found.text}; by default "
            f"{share:.3%} of the run"
        )


if __name__ == "__main__":
    report(lines())
