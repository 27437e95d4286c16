"""What ranks do in tests of traces."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from _rank_jobs import registered
from _rank_models import build, loss_of

from compressa.tracing import Recording, Span


def _train(wrapped: Any, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(wrapped, dist.get_rank(), step, torch.float32).backward()
        optimizer.step()


def traced(*, config: Any, path: str | None, before: int = 2, steps: int = 4) -> dict[str, Any]:
    """Train, some of it in a `with handle.trace`; return what the trace should tell."""
    net = build("mlp", dist.get_rank())
    with registered(net, config) as (wrapped, handle):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        _train(wrapped, optimizer, before)
        if path is None:
            _train(wrapped, optimizer, steps)
        else:
            with handle.trace(path):
                _train(wrapped, optimizer, steps)
            assert Path(path).with_name(f"trace-rank{dist.get_rank()}.json").exists()
        _train(wrapped, optimizer, 1)
        stats = handle.stats()
    gc.collect()
    return {
        "names": [name for name, _ in net.named_parameters()],
        "messages": stats.messages,
        "recorded": sum(isinstance(x, Recording | Span) for x in gc.get_objects()),
    }


def traced_several_times(*, config: Any, folder: str) -> list[list[str]]:
    """Trace again and again; return which files are there after each call."""
    net = build("mlp", dist.get_rank())
    seen = []

    def look() -> None:
        mine = f"*-rank{dist.get_rank()}.json"
        seen.append(sorted(file.name for file in Path(folder).glob(mine)))

    with registered(net, config) as (wrapped, handle):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        _train(wrapped, optimizer, 1)
        with handle.trace(f"{folder}/first.json"):
            _train(wrapped, optimizer, 1)
            handle.trace(f"{folder}/second.json")
            look()
            _train(wrapped, optimizer, 1)
        look()  # the end of the first does not end the second
        handle.trace(None)
        look()
        handle.trace(None)
        handle.trace(f"{folder}/third.json")
        _train(wrapped, optimizer, 1)
    look()
    return seen
