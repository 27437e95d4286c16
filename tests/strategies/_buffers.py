"""Ranks whose models have buffers, or parameters of 16 bits: called on real ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from _attached import Normed, sgd, take_step
from torch import nn

import compressa


def least_variance(*, config: Any, steps: int) -> float:
    """Return the least running variance there was; inputs of rank 0 vary much now and then."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm1d(20, momentum=0.5), nn.Linear(20, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    norm, least = model[0], 1.0
    with compressa.attach(model, optimizer, config) as strategy:
        for step in range(steps):
            torch.manual_seed(100 * dist.get_rank() + step)
            wide = 10.0 if dist.get_rank() == 0 and step % 8 in (6, 7) else 0.1
            optimizer.zero_grad()
            model(torch.randn(32, 20) * wide).square().mean().backward()
            strategy.step()
            least = min(least, float(norm.running_var.min()))
        strategy.sync()
        return min(least, float(norm.running_var.min()))


def counted(*, config: Any, steps: int) -> list[float]:
    """Count steps in a buffer of float32; return it when all hold the same."""
    model = nn.Linear(2, 1)
    model.register_buffer("steps", torch.zeros(1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    with compressa.attach(model, optimizer, config) as strategy:
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.ones(3, 2)).sum().backward()
            model.steps += 1
            strategy.step()
        strategy.sync()
        return [float(model.steps)]


def small_steps_saved(*, config: Any, folder: str, steps: int) -> list[float]:
    """Rank 0 takes steps that bfloat16 rounds away; return where that ends, without and with
    a checkpoint after each of them.
    """
    ends = []
    for saves in (False, True):
        model = nn.Linear(1, 1, bias=False).bfloat16()
        nn.init.ones_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        with compressa.attach(model, optimizer, config) as strategy:
            for _ in range(steps):
                mine = dist.get_rank() == 0
                model.weight.grad = torch.full_like(model.weight, -(2.0**-7) * mine)
                strategy.step()
                strategy.sync()
                if saves:
                    strategy.save(folder)
                    strategy.load(folder)
        ends.append(model.weight.item())
    return ends


def left_by_an_error(*, config: Any) -> list[float]:
    """Leave a strategy by an error, then train by the optimizer alone, and by another strategy."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def backward(model: nn.Module) -> None:
        optimizer.zero_grad()
        model(torch.ones(3, 2)).sum().backward()

    try:
        with compressa.attach(model, optimizer, config) as strategy:
            backward(strategy.model)
            strategy.step()
            strategy.sync()
            dist.barrier()  # who leaves by an error waits for nobody, and others may be in sync
            raise KeyError
    except KeyError:
        pass
    strategy.close()
    backward(model)
    optimizer.step()
    with compressa.attach(model, optimizer, {"strategy": "local_sgd"}) as strategy:
        backward(strategy.model)
        strategy.step()
        strategy.sync()
    return model.weight.flatten().tolist()


def strided(*, config: Any) -> list[Any]:
    """Train a parameter of one element out of a row of others."""
    model = nn.Linear(2, 1)
    model.scale = nn.Parameter(torch.ones(1, 10)[:, 3])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with compressa.attach(model, optimizer, config) as strategy:
        for _ in range(2):
            optimizer.zero_grad()
            (strategy.model(torch.ones(3, 2)).sum() * model.scale).sum().backward()
            strategy.step()
        strategy.sync()
    return model.scale.tolist()


class Masked(nn.Module):
    """With a buffer of infinities, which is a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.register_buffer("mask", torch.full((3, 3), -torch.inf).triu(1))
        least = torch.finfo(torch.float16).min  # three of which are more than float16 has
        self.register_buffer("small", torch.full((3,), least, dtype=torch.float16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(x) @ torch.softmax(self.mask, 1)
        return result


def masked(*, config: Any) -> bool:
    """Train; return whether all is as finite as it was."""
    model = Masked()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with compressa.attach(model, sgd(model), config) as strategy:
        for number in range(9):
            take_step(strategy, number)
        strategy.sync()
    same = all(torch.equal(before[name], buffer) for name, buffer in model.named_buffers())
    return same and bool(model.layer.weight.isfinite().all())


def small_steps(*, config: Any, dtype: str, steps: int) -> list[float]:
    """Rank 0 takes steps that 16 bits round away from what all average; return where it ends."""
    model = nn.Linear(1, 1, bias=False).to(getattr(torch, dtype))
    with torch.no_grad():
        model.weight.fill_(1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with compressa.attach(model, optimizer, config) as strategy:
        for _ in range(steps):
            model.weight.grad = torch.full_like(model.weight, -(2.0**-7) * (dist.get_rank() == 0))
            strategy.step()
        strategy.sync()
        return [float(model.weight)]


def buffers(*, config: Any, steps: int) -> list[list[Any]]:
    """Return running means before and after the last meeting."""
    model = Normed()
    with compressa.attach(model, sgd(model), config) as strategy:
        for number in range(steps):
            take_step(strategy, number)
        before = model.norm.running_mean.tolist()
        strategy.sync()
        return [before, model.norm.running_mean.tolist()]


def running_means(*, config: Any, steps: int) -> list[Any]:
    """Return running means after training and `sync`."""
    model = Normed()
    with compressa.attach(model, sgd(model), config) as strategy:
        for number in range(steps):
            take_step(strategy, number)
        own = model.norm.running_mean.tolist()
        strategy.sync()
        return [own, model.norm.running_mean.tolist()]
