"""What optimizers that exchange compressed momenta do, in NumPy and float64.

Each rank's gradient is that of a quadratic of its own, whose minimum moves from step to step. What
crosses the network is what the project's codecs decode; error feedback and shards are done here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from _gossip_oracle import by

from compressa.aggregators.shards import cut_shards
from compressa.codecs import Codec
from compressa.parameters import Layout, ParameterInfo, Segment

Array = npt.NDArray[np.float64]
Values = dict[str, Array]
Combine = Callable[[Sequence[Array]], Array]

SHAPES = {"weight": (24, 16), "bias": (16,)}


def float32(values: Array) -> Array:
    return values.astype(np.float32).astype(np.float64)


def initial() -> Values:
    draw = np.random.default_rng(3)
    return {name: float32(draw.normal(size=shape)) for name, shape in SHAPES.items()}


def quadratic(name: str, rank: int, step: int) -> tuple[Array, Array]:
    """Curvature and minimum of a rank's loss, for one parameter in one step."""
    draw = np.random.default_rng([len(name), rank, step])
    shape = SHAPES[name]
    return float32(draw.uniform(0.5, 1.5, shape)), float32(draw.normal(size=shape) + rank)


def gradient(name: str, value: Array, rank: int, step: int) -> Array:
    curvature, minimum = quadratic(name, rank, step)
    return curvature * (value - minimum)


def mean(values: Sequence[Array]) -> Array:
    """Sent dense."""
    return np.mean(values, axis=0)


class TwoSided:
    """Scatter-reduce-all-gather with residuals of the ranks and of the owners."""

    def __init__(self, codec: Codec, ranks: int, shape: tuple[int, ...]) -> None:
        parameter = ParameterInfo(0, "weight", shape)
        layout = Layout(0, (Segment(parameter, 0, parameter.elems),))
        cut = cut_shards(layout, ranks, codec.block_elems)
        self._shards = [
            slice(s[0].segment.start, s[0].segment.stop) if s else slice(0, 0) for s in cut
        ]
        self._compress, self._shape = by(codec), shape
        self._ranks = [np.zeros(parameter.elems) for _ in range(ranks)]
        self._owners = np.zeros(parameter.elems)

    def __call__(self, values: Sequence[Array]) -> Array:
        result = np.zeros_like(self._owners)
        for owner, shard in enumerate(self._shards):
            if shard.start == shard.stop:
                continue
            arrived = []
            for rank, value in enumerate(values):
                own = value.ravel()[shard]
                if rank != owner:
                    wanted = own + self._ranks[rank][shard]
                    own = self._compress(wanted)
                    self._ranks[rank][shard] = wanted - own
                arrived.append(own)
            due = np.mean(arrived, axis=0) + self._owners[shard]
            result[shard] = self._compress(due)
            self._owners[shard] = due - result[shard]
        return result.reshape(self._shape)


class Gathered:
    """All-gather with residuals that decay."""

    def __init__(self, codec: Codec, ranks: int, shape: tuple[int, ...], decay: float) -> None:
        self._compress, self._decay = by(codec), decay
        self._residuals = [np.zeros(shape) for _ in range(ranks)]

    def __call__(self, values: Sequence[Array]) -> Array:
        sent = []
        for rank, value in enumerate(values):
            wanted = value + self._decay * self._residuals[rank]
            sent.append(self._compress(wanted))
            self._residuals[rank] = wanted - sent[-1]
        return mean(sent)


class Estimates:
    """EF21."""

    def __init__(self, codec: Codec, ranks: int, shape: tuple[int, ...]) -> None:
        self._compress = by(codec)
        self._estimates = [np.zeros(shape) for _ in range(ranks)]

    def __call__(self, values: Sequence[Array]) -> Array:
        for rank, value in enumerate(values):
            change = self._compress(value - self._estimates[rank])
            self._estimates[rank] = self._estimates[rank] + change
        return mean(self._estimates)


def majority(values: Sequence[Array]) -> Array:
    """The sign of the sum of signs; of zero, +1."""
    votes = sum(np.where(value < 0, -1.0, 1.0) for value in values)
    return np.where(votes < 0, -1.0, 1.0)


class Optimizer:
    """One parameter on all ranks; what is the same on all of them is kept once.

    Args:
        name: The parameter's.
        ranks: How many there are.
        combine: What arrives of what ranks send.
        hyper: As the optimizer's group has them.
    """

    def __init__(self, name: str, ranks: int, combine: Combine, **hyper: Any) -> None:
        self.name, self.ranks, self.combine, self.hyper = name, ranks, combine, hyper
        self.x = initial()[name]
        self.m = [np.zeros_like(self.x) for _ in range(ranks)]
        self.v = np.zeros_like(self.x)
        self.t = 0

    def gradients(self) -> list[Array]:
        return [gradient(self.name, self.x, rank, self.t) for rank in range(self.ranks)]

    def remember(self, beta: float, gradients: Sequence[Array]) -> None:
        self.m = [beta * m + (1 - beta) * g for m, g in zip(self.m, gradients, strict=True)]

    def shrink(self) -> None:
        self.x = self.x * (1 - self.hyper["lr"] * self.hyper["weight_decay"])

    def step(self) -> list[Array]:
        """Take a step; return each rank's parameter."""
        self.update(self.gradients())
        self.t += 1
        return [self.x] * self.ranks

    def update(self, gradients: list[Array]) -> None:
        raise NotImplementedError


class OneBitAdam(Optimizer):
    def moments(self, gradients: list[Array]) -> None:
        (b1, b2), warm = self.hyper["betas"], self.t < self.hyper["warmup_steps"]
        if warm:
            g = mean(gradients)
            self.remember(b1, [g] * self.ranks)
            self.v = b2 * self.v + (1 - b2) * g * g
        else:
            self.remember(b1, gradients)
            self.m = [self.combine(self.m)] * self.ranks

    def root(self, v: Array, updates: int) -> Array:
        return np.sqrt(v / (1 - self.hyper["betas"][1] ** updates)) + self.hyper["eps"]

    def direction(self) -> Array:
        root = self.root(self.v, min(self.t + 1, self.hyper["warmup_steps"]))
        return self.m[0] / (1 - self.hyper["betas"][0] ** (self.t + 1)) / root

    def update(self, gradients: list[Array]) -> None:
        self.moments(gradients)
        self.shrink()
        self.x = self.x - self.hyper["lr"] * self.direction()


class OneBitLamb(OneBitAdam):
    average, r = 0.0, 1.0
    fresh: Array

    def update(self, gradients: list[Array]) -> None:
        (b1, b2), warm = self.hyper["betas"], self.hyper["warmup_steps"]
        before = self.m[0]
        self.moments(gradients)
        change = self.direction() + self.hyper["weight_decay"] * self.x
        if self.t < warm:
            c = float(np.clip(np.linalg.norm(self.x) / np.linalg.norm(change), 0.01, 10.0))
            self.average = 0.9 * self.average + 0.1 * c
            self.fresh = self.v
        else:
            told = (self.m[0] - b1 * before) / (1 - b1)
            self.fresh = b2 * self.fresh + (1 - b2) * told * told
            r = (self.root(self.v, warm) / self.root(self.fresh, self.t + 1)).max()
            self.r = float(np.clip(np.clip(r, 0.5, 4.0), 0.9 * self.r, 1.1 * self.r))
            c = self.r * self.average / (1 - 0.9**warm)
        self.x = self.x - self.hyper["lr"] * c * change


class ZeroOneAdam(Optimizer):
    def __init__(self, *args: Any, **hyper: Any) -> None:
        super().__init__(*args, **hyper)
        self.own = [self.x] * self.ranks
        self.u = [np.zeros_like(self.x) for _ in range(self.ranks)]
        self.rates, self.peak, self.apart, self.interval = 0.0, 0.0, 0, 1
        self.count, self.next = 0, 0
        self.met: list[int] = []

    def gradients(self) -> list[Array]:
        return [gradient(self.name, self.own[i], i, self.t) for i in range(self.ranks)]

    def step(self) -> list[Array]:
        super().step()
        return self.own

    def update(self, gradients: list[Array]) -> None:
        (b1, b2), warm = self.hyper["betas"], self.hyper["warmup_steps"]
        rate = self.hyper["lr"] / (1 - b1 ** (self.t + 1))
        self.peak = max(self.peak, self.hyper["lr"])
        learns = self.t < warm and self.t == self.next
        if learns:
            gradients = [mean(gradients)] * self.ranks
            self.v = b2 * self.v + (1 - b2) * gradients[0] ** 2
            self.next = self.t + 2 ** (self.count // self.hyper["kappa"])
            self.count += 1
        root = np.sqrt(self.v / (1 - b2**self.count)) + self.hyper["eps"]
        shrunk = 1 - self.hyper["lr"] * self.hyper["weight_decay"]
        self.remember(b1, gradients)
        self.x = self.x * shrunk
        self.own = [own * shrunk - rate * m / root for own, m in zip(self.own, self.m, strict=True)]
        if learns:
            self.x = self.own[0]
            return
        self.u = [u + rate * m for u, m in zip(self.u, self.m, strict=True)]
        self.rates += rate
        self.apart += 1
        if self.apart >= self.interval:
            self.meet(root)
            over = self.t + 1 >= warm
            halvings = math.floor(math.log2(self.peak / self.hyper["lr"]))
            self.interval = min(2**halvings, self.hyper["max_interval"]) if over else 1

    def meet(self, root: Array) -> None:
        moved = self.combine(self.u)
        self.m = [moved / self.rates] * self.ranks
        self.x = self.x - moved / root
        self.own = [self.x] * self.ranks
        self.u = [np.zeros_like(self.x) for _ in range(self.ranks)]
        self.rates, self.apart = 0.0, 0
        self.met.append(self.t)


class DeMo(Optimizer):
    def update(self, gradients: list[Array]) -> None:
        arrived = self.combine([self.hyper["lr"] * g for g in gradients])
        self.shrink()
        self.x = self.x - self.hyper["lr"] * np.sign(arrived)


class Momentum(Optimizer):
    """signSGD and EF21, by what `combine` does."""

    def update(self, gradients: list[Array]) -> None:
        self.remember(self.hyper["momentum"], gradients)
        arrived = self.combine(self.m)
        self.shrink()
        self.x = self.x - self.hyper["lr"] * arrived
