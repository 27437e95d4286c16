"""How updates of one memory without locks scale: a sparse linear model, by one process and by more.

    torchrun --nproc-per-node 1 -m benchmarks.hogwild
    torchrun --nproc-per-node 2 -m benchmarks.hogwild

Each process takes as many steps of SGD, of batches of examples with few words of many. It says the
steps of all processes in a second, and the loss of the model that they made together.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn

import compressa
from benchmarks.paired import report

WORDS, OF_EXAMPLE, BATCH, STEPS, RATE = 100_000, 20, 32, 5000, 0.8


def batch(truth: torch.Tensor, made: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the words of some examples, and what is true of them."""
    words = torch.randint(WORDS, (BATCH, OF_EXAMPLE), generator=made)
    return words, truth[words].sum(1, keepdim=True)


def measured() -> Iterator[str]:
    """Train; say how quickly, and how well."""
    torch.set_num_threads(1)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    truth = torch.randn(WORDS, generator=torch.Generator().manual_seed(0))
    model = nn.EmbeddingBag(WORDS, 1, mode="sum", sparse=True)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    made = torch.Generator().manual_seed(1 + rank)
    with compressa.attach(model, optimizer, {"strategy": "hogwild"}) as strategy:
        strategy.sync()
        begun_s = time.perf_counter()
        for _ in range(STEPS):
            words, values = batch(truth, made)
            loss = (strategy.model(words) - values).square().mean()
            optimizer.zero_grad()
            loss.backward()
            strategy.step()
        strategy.sync()
        seconds = time.perf_counter() - begun_s
        with torch.no_grad():
            words, values = batch(truth, torch.Generator().manual_seed(0))
            left = float((model(words) - values).square().mean() / values.square().mean())
    steps = ranks * STEPS / seconds
    yield f"{ranks} processes: {steps:,.0f} steps a second, {left:.1%} of the variance is left"


if __name__ == "__main__":
    report(measured())
