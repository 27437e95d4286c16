"""Two ranks, each a process on this machine, that train perceptrons with something and without."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from pydantic import PositiveInt
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.paired import Overhead, overhead
from compressa.hooks import Handle, register_comm_hook
from compressa.testbed import open_testbed
from harness import records
from harness.ranks import Ranks
from harness.start import started_ranks
from harness.wire import Wire

RANKS, WIDTH = 2, 1024
_BATCH = 64
_WARM_STEPS, _STEPS = 3, 3
_DEADLINE_S = 600.0


class PairsHeader(records.Header):
    """Where, when and how; `pairs` says how often times were compared."""

    threads_per_rank: Literal[1] = 1
    ranks: Literal[2] = 2
    pairs: PositiveInt


@contextmanager
def started_perceptrons() -> Iterator[Ranks]:
    """Start the ranks, which can be asked to `compare`.

    Raises:
        RankError: They do not start.
    """
    with (
        open_testbed(RANKS, "unshaped", kind="loopback", self_check=False) as bed,
        started_ranks(bed, f"{__name__}:Perceptrons", deadline_s=_DEADLINE_S) as ranks,
    ):
        yield ranks


class Perceptrons:
    """What a rank can be asked for; see `harness.rank`."""

    def __init__(self, wire: Wire) -> None:
        pass

    def compare(
        self, off: Mapping[str, Any], on: Mapping[str, Any], layers: int, pairs: int
    ) -> dict[str, float]:
        """Train by two configurations in turns; tell the fields of an `Overhead`.

        Args:
            off: The configuration without.
            on: That with.
            layers: As `perceptron` takes them.
            pairs: How often to compare times.
        """
        gc.collect()  # what was compared before
        return compared(perceptron(off, layers), perceptron(on, layers), pairs).model_dump()


class Trained(NamedTuple):
    """A model with a hook.

    Attributes:
        step: Trains a step.
        handle: The hook's.
    """

    step: Callable[[], None]
    handle: Handle


def perceptron(settings: Mapping[str, Any], layers: int) -> Trained:
    """Return a perceptron of square layers with a hook of this configuration. Collective.

    Args:
        settings: The configuration.
        layers: How many, of `WIDTH` x `WIDTH` weights each, float32.
    """
    torch.manual_seed(0)
    model = DistributedDataParallel(
        nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(layers)))
    )
    handle = register_comm_hook(model, settings)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    inputs = torch.randn(_BATCH, WIDTH)

    def step() -> None:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()

    return Trained(step, handle)


def compared(off: Trained, on: Trained, pairs: int) -> Overhead:
    """Compare the steps of two models, which are closed then. Collective.

    Args:
        off: What is trained without.
        on: What is trained with.
        pairs: How often to compare times.
    """
    now = off

    def choose(with_it: bool) -> None:
        nonlocal now
        dist.barrier()
        now = on if with_it else off

    for one in (off, on):
        for _ in range(_WARM_STEPS):
            one.step()
    found = overhead(lambda: now.step(), choose, pairs=pairs, steps=_STEPS)
    for one in (off, on):
        one.handle.close()
    return found
