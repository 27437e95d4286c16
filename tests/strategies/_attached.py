"""Ranks that train a linear regression by a strategy: called on real ranks."""

from __future__ import annotations

import copy
import os
import time
from typing import Any

import torch
import torch.distributed as dist
from _averaging_oracle import MOMENTUM, RATE, SHAPES, batch, initial
from torch import nn

import compressa
import compressa.optim
from compressa.strategies.base import EngineStrategy
from compressa.strategies.bounded import Stale


class Regression(nn.Module):
    """x first + bias + |x| second + shift."""

    def __init__(self) -> None:
        super().__init__()
        for name in SHAPES:
            self.register_parameter(name, nn.Parameter(torch.from_numpy(initial()[name]).float()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = x @ self.first + self.bias + x.abs() @ self.second + self.shift
        return result


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)


def take_step(strategy: compressa.Strategy, number: int) -> None:
    x, y = (torch.from_numpy(a).float() for a in batch(dist.get_rank(), number))
    strategy.optimizer.zero_grad()
    (strategy.model(x) - y).square().mean().backward()
    strategy.step()


def values_of(model: nn.Module) -> dict[str, list[Any]]:
    return {name: value.tolist() for name, value in model.state_dict().items()}


def history(*, config: Any, steps: int) -> list[dict[str, list[Any]]]:
    """Return this rank's parameters after each step, and after `sync`."""
    model = Regression()
    with compressa.attach(model, sgd(model), config) as strategy:
        found = []
        for number in range(1, steps + 1):
            take_step(strategy, number)
            found.append(values_of(model))
        strategy.sync()
        return [*found, values_of(model)]


class Normed(nn.Module):
    """With running statistics, which are buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.norm(self.layer(x))
        return result


def resumed(*, config: Any, folder: str, steps: int, models: bool = False) -> list[Any]:
    """Train in one go, and go on from what was saved in the middle; return where both end.

    With `models`, the model's state is saved, too.
    """
    rank, ends = dist.get_rank(), []
    model = Regression()
    with compressa.attach(model, sgd(model), config) as strategy:
        for number in range(steps):
            take_step(strategy, number)
        strategy.sync()
        strategy.save(folder)
        torch.save(strategy.optimizer.state_dict(), f"{folder}/{rank}.pt")
        torch.save(model.state_dict(), f"{folder}/model-{rank}.pt")
        for number in range(steps, 2 * steps):
            take_step(strategy, number)
        strategy.sync()
        ends.append([values_of(model), state_of(strategy)])
    model = Regression()
    with compressa.attach(model, sgd(model), config) as strategy:
        take_step(strategy, 99)
        strategy.sync()
        strategy.optimizer.load_state_dict(torch.load(f"{folder}/{rank}.pt"))
        if models:
            model.load_state_dict(torch.load(f"{folder}/model-{rank}.pt"))
        strategy.load(folder)
        for number in range(steps, 2 * steps):
            take_step(strategy, number)
        strategy.sync()
        ends.append([values_of(model), state_of(strategy)])
    return ends


def state_of(strategy: compressa.Strategy) -> dict[str, list[Any]]:
    if isinstance(strategy, Stale):
        vectors = strategy.worker.state.vectors
    else:
        assert isinstance(strategy, EngineStrategy), "it keeps state"
        vectors = strategy.handle.state_dict()
    return {name: value.tolist() for name, value in vectors.items()}


def saved_apart(*, config: Any, folder: str) -> None:
    """Save where ranks hold different parameters."""
    model = Regression()
    with compressa.attach(model, sgd(model), config) as strategy:
        take_step(strategy, 0)
        dist.barrier()  # who is refused leaves, and others may still be in their step
        strategy.save(folder)


def meetings(*, config: Any, rates: list[float]) -> list[int]:
    """Return after which steps ranks met, with learning rates of one's own."""
    model = Regression()
    with compressa.attach(model, sgd(model), config) as strategy:
        return met(strategy, rates, 1)


def met(strategy: compressa.Strategy, rates: list[float], first: int) -> list[int]:
    """Take a step with each rate, numbered from `first`; return after which ranks met."""
    assert isinstance(strategy, EngineStrategy)
    found = []
    for number, rate in enumerate(rates, first):
        strategy.optimizer.param_groups[0]["lr"] = rate
        before = strategy.handle.next_step
        take_step(strategy, number)
        if strategy.handle.next_step > before:
            found.append(number)
    return found


def meetings_after_a_restart(
    *, config: Any, rates: list[float], at: int, folder: str
) -> list[list[int]]:
    """Return when ranks met after `at` steps: in one go, and by who went on from a checkpoint."""
    rank, model = dist.get_rank(), Regression()
    with compressa.attach(model, sgd(model), config) as strategy:
        met(strategy, rates[:at], 0)
        strategy.sync()
        strategy.save(folder)
        torch.save(strategy.optimizer.state_dict(), f"{folder}/{rank}.pt")
        torch.save(model.state_dict(), f"{folder}/model-{rank}.pt")
        found = [met(strategy, rates[at:], at)]
    model = Regression()
    with compressa.attach(model, sgd(model), config) as strategy:
        strategy.optimizer.load_state_dict(torch.load(f"{folder}/{rank}.pt"))
        model.load_state_dict(torch.load(f"{folder}/model-{rank}.pt"))
        strategy.load(folder)
        return [*found, met(strategy, rates[at:], at)]


def step_by_itself(*, config: Any) -> str:
    """Call the optimizer's own step, while attached and afterwards; return what it says."""
    model = Regression()
    optimizer = sgd(model)
    with compressa.attach(model, optimizer, config) as strategy:
        take_step(strategy, 0)
        try:
            optimizer.step()
        except compressa.StateError as error:
            said = str(error)
        strategy.sync()
    optimizer.step()
    return said


def lost(*, config: Any, step: int, pause_s: float = 0.0) -> list[Any]:
    """Have rank 1 end in a step; return what the others are told."""
    model = Regression()
    with compressa.attach(model, sgd(model), config) as strategy:
        for number in range(100):
            if number == step and dist.get_rank() == 1:
                os._exit(3)
            time.sleep(pause_s)
            try:
                take_step(strategy, number)
            except compressa.PeerLost as error:
                return [error.rank, number]
    return []


def attached(*, config: Any, kind: str = "regression", rate: float = RATE) -> None:
    """Attach, with something that may not fit."""
    model: nn.Module = Regression()
    optimizer: torch.optim.Optimizer = sgd(model)
    if kind == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    elif kind == "double":
        model = Regression().double()
        optimizer = sgd(model)
    elif kind == "frozen":
        model.requires_grad_(False)
    elif kind == "another optimizer":
        optimizer = sgd(Regression())
    elif kind == "compressed":
        optimizer = compressa.optim.SignSGD(model.parameters(), lr=rate)
    elif kind == "plain":
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    mine = config if kind != "differs" or dist.get_rank() else {"compressor": "nonsense"}
    compressa.attach(model, optimizer, mine).close()


def every_step(*, config: Any, steps: int) -> list[Any]:
    """Train by DDP alone, and attached; return where both end."""
    plain = Regression()
    wrapped = nn.parallel.DistributedDataParallel(plain)
    optimizer = sgd(wrapped)
    for number in range(steps):
        x, y = (torch.from_numpy(a).float() for a in batch(dist.get_rank(), number))
        optimizer.zero_grad()
        (wrapped(x) - y).square().mean().backward()
        optimizer.step()
    model = Regression()
    with compressa.attach(model, sgd(model), config) as strategy:
        for number in range(steps):
            take_step(strategy, number)
        strategy.sync()
        return [values_of(plain), values_of(model)]


def of_16_bits(*, config: Any, steps: int) -> list[Any]:
    """Train parameters of bfloat16; return them after `sync`."""
    model = Regression().bfloat16()
    with compressa.attach(model, sgd(model), config) as strategy:
        for number in range(steps):
            x, y = (torch.from_numpy(a).bfloat16() for a in batch(dist.get_rank(), number))
            strategy.optimizer.zero_grad()
            (strategy.model(x) - y).square().mean().backward()
            strategy.step()
        strategy.sync()
        return [values_of(model)]


def left_without_sync(*, steps: int) -> list[Any]:
    """Train by DDP alone, and overlapped in a `with` block that ends with updates still due."""
    ends = []
    for config in ({"strategy": "hook"}, {"strategy": "overlapped"}):
        model = Regression()
        with compressa.attach(model, sgd(model), config) as strategy:
            for number in range(steps):
                take_step(strategy, number)
        ends.append(values_of(model))
    return ends


def scaled(*, config: Any, steps: int) -> list[Any]:
    """Train with a scaler, of whose steps one overflows on every rank; return parameters."""
    model = Regression()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1000)
    with compressa.attach(model, sgd(model), config, scaler=scaler) as strategy:
        for number in range(steps):
            x, y = (torch.from_numpy(a).float() for a in batch(dist.get_rank(), number))
            if number == 1:
                x = x * float("inf")
            strategy.optimizer.zero_grad()
            scaler.scale((strategy.model(x) - y).square().mean()).backward()
            strategy.step()
        strategy.sync()
        return [values_of(model), scaler.get_scale()]


def go_on(*, config: Any, folder: str) -> list[Any]:
    """Go on from what another number of ranks has saved; return where that ends."""
    model = Regression()
    with compressa.attach(model, sgd(model), config) as strategy:
        strategy.load(folder)
        for number in range(6):
            take_step(strategy, number)
        strategy.sync()
        return [values_of(model)]


def opened_otherwise(*, config: Any, by: str) -> None:
    """Hand a configuration that names a strategy to what does not follow it."""
    model = Regression()
    if by == "register_comm_hook":
        compressa.register_comm_hook(nn.parallel.DistributedDataParallel(model), config)
    elif by == "OverlappedDataParallel":
        compressa.OverlappedDataParallel(model, sgd(model), config)
    elif by == "open_parameter_server":
        compressa.open_parameter_server(dist.group.WORLD, {"a": [3]}, config)
    else:
        compressa.open_engine(config, model)


def saved_before_a_meeting(*, config: Any, folder: str) -> list[Any]:
    """Save what has just begun, and train on from that; return what another run of it gives."""
    ends = []
    for begins in (False, True):
        model = Regression()
        with compressa.attach(model, sgd(model), config) as strategy:
            if begins:
                strategy.load(folder)
            else:
                strategy.save(folder)
            for number in range(9):
                take_step(strategy, number)
            strategy.sync()
            ends.append(values_of(model))
    return ends


def moved(*, config: Any) -> None:
    """Replace a parameter's memory after it was attached."""
    model = Regression()
    with compressa.attach(model, sgd(model), config) as strategy:
        model.first.data = model.first.data.clone()
        for number in range(9):
            take_step(strategy, number)


def switched(*, config: Any, to: Any) -> list[str]:
    """Switch; return the names of what is told at meetings compresses with, before and after."""
    model = Normed()
    with compressa.attach(model, sgd(model), config) as strategy:
        step = strategy.handle.switch(to)
        for number in range(step + 2):
            take_step(strategy, number)
        strategy.sync()
        return sorted(strategy.stats().compressors)


def saved_and_read(*, config: Any, folder: str) -> list[Any]:
    """Save, read it into a strategy of other values, and train on; return what was read."""
    model = Regression()
    with compressa.attach(model, sgd(model), config) as strategy:
        for number in range(5):
            take_step(strategy, number)
        strategy.sync()
        strategy.save(folder)
        saved = {name: value.clone() for name, value in model.state_dict().items()}
    model = Regression()
    with compressa.attach(model, sgd(model), config) as strategy:
        take_step(strategy, 0)
        strategy.sync()
        model.load_state_dict(saved)
        strategy.load(folder)
        read = values_of(model)
        for number in range(5):
            take_step(strategy, number)
        strategy.sync()
        return [{n: v.tolist() for n, v in saved.items()}, read, values_of(model)]


def embedded(*, config: Any, steps: int) -> list[Any]:
    """Train an embedding whose gradients are sparse; return the loss at first and in the end."""
    torch.manual_seed(dist.get_rank())
    model = nn.EmbeddingBag(50, 1, mode="sum", sparse=True)
    with torch.no_grad():
        model.weight.zero_()
    truth = torch.linspace(-1, 1, 50)[:, None]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    losses = []
    with compressa.attach(model, optimizer, config) as strategy:
        for _ in range(steps):
            words = torch.randint(50, (16, 3))
            loss = (strategy.model(words) - truth[words].sum(1)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            assert model.weight.grad is not None
            assert model.weight.grad.is_sparse
            strategy.step()
            losses.append(float(loss.detach()))
        strategy.sync()
    return [sum(losses[:5]), sum(losses[-5:])]


def gone_back(*, config: Any, folder: str) -> list[Any]:
    """Load an earlier checkpoint in the same run; return both ways from there."""
    model = Regression()
    with compressa.attach(model, sgd(model), config) as strategy:
        ends = []
        for number in range(3):
            take_step(strategy, number)
        strategy.sync()
        strategy.save(folder)
        kept = {name: value.clone() for name, value in model.state_dict().items()}
        momenta = copy.deepcopy(strategy.optimizer.state_dict())
        for again in range(2):
            if again:
                model.load_state_dict(kept)
                strategy.optimizer.load_state_dict(momenta)
                strategy.load(folder)
            for number in range(3, 6):
                take_step(strategy, number)
            strategy.sync()
            ends.append(values_of(model))
        return ends


def loaded_on_one_rank(*, config: Any, folder: str) -> None:
    """Load a checkpoint where only one rank has loaded the model."""
    model = Regression()
    with compressa.attach(model, sgd(model), config) as strategy:
        strategy.save(folder)
        with torch.no_grad():
            model.first.add_(dist.get_rank())
        strategy.load(folder)
