"""What ranks that meet every so many steps do, in NumPy and float64, on a linear regression."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Values = dict[str, Array]

SHAPES = {"first": (6, 3), "bias": (3,), "second": (6, 3), "shift": (3,)}
RATE, MOMENTUM = 0.05, 0.9
EXAMPLES = 8


def initial() -> Values:
    """What all ranks begin with: float32 numbers."""
    draw = np.random.default_rng(7)
    return {
        name: draw.normal(size=shape).astype(np.float32).astype(np.float64)
        for name, shape in SHAPES.items()
    }


def batch(rank: int, step: int) -> tuple[Array, Array]:
    """A rank's inputs and targets in a step: float32 numbers."""
    draw = np.random.default_rng([rank, step])
    x, y = draw.normal(size=(EXAMPLES, 6)), draw.normal(size=(EXAMPLES, 3)) + rank
    return x.astype(np.float32).astype(np.float64), y.astype(np.float32).astype(np.float64)


def gradient(values: Values, rank: int, step: int) -> Values:
    """Of the mean square of x first + bias + |x| second + shift - y."""
    x, y = batch(rank, step)
    a = np.abs(x)
    error = x @ values["first"] + values["bias"] + a @ values["second"] + values["shift"] - y
    error = 2 * error / error.size
    return {
        "first": x.T @ error,
        "bias": error.sum(0),
        "second": a.T @ error,
        "shift": error.sum(0),
    }


@dataclass
class Rank:
    """One rank's parameters and the inner optimizer's momenta."""

    number: int
    values: Values = field(default_factory=initial)
    momenta: Values = field(default_factory=dict)

    def step(self, step: int) -> None:
        for name, g in gradient(self.values, self.number, step).items():
            self.momenta[name] = MOMENTUM * self.momenta.get(name, np.zeros_like(g)) + g
            self.values[name] = self.values[name] - RATE * self.momenta[name]


def fragments_of(count: int) -> list[list[str]]:
    """By the middle of each parameter among all elements."""
    sizes = {name: int(np.prod(shape)) for name, shape in SHAPES.items()}
    total, before = sum(sizes.values()), 0
    found: dict[int, list[str]] = {}
    for name, size in sizes.items():
        found.setdefault(int((before + size / 2) * count / total), []).append(name)
        before += size
    return list(found.values())


def trained(settings: dict[str, Any], ranks: int, steps: int) -> list[list[Values]]:
    """Return the parameters of each rank after each step."""
    everyone = [Rank(number) for number in range(ranks)]
    anchor, outer = initial(), dict[str, Array]()
    parts = fragments_of(settings.get("fragments", 1))
    every, tau = settings["every"], settings.get("overlap_steps", 0)
    due: list[tuple[int, list[str], Values]] = []
    history = []
    for step in range(1, steps + 1):
        for rank in everyone:
            rank.step(step)
        _land_due(settings, everyone, anchor, outer, due, step)
        for part, name_list in enumerate(parts):
            offset = int(np.ceil((part + 1) * every / len(parts)))
            if (step - offset) % every == 0 and step >= offset:
                means = {
                    n: np.mean([r.values[n] - anchor[n] for r in everyone], axis=0)
                    for n in name_list
                }
                due.append((step + tau, name_list, means))
        _land_due(settings, everyone, anchor, outer, due, step)  # what needs no time
        history.append([{n: v.copy() for n, v in r.values.items()} for r in everyone])
    return history


def _land_due(
    settings: dict[str, Any],
    everyone: list[Rank],
    anchor: Values,
    outer: Values,
    due: list[tuple[int, list[str], Values]],
    step: int,
) -> None:
    for entry in [entry for entry in due if entry[0] == step]:
        due.remove(entry)
        _land(settings, everyone, anchor, outer, entry[1], entry[2])


def _land(
    settings: dict[str, Any],
    everyone: list[Rank],
    anchor: Values,
    outer: Values,
    names: list[str],
    means: Values,
) -> None:
    for n in names:
        before = anchor[n]
        if settings["name"] == "easgd":
            alpha = settings["pull"] / len(everyone)
            for rank in everyone:
                rank.values[n] = rank.values[n] - alpha * (rank.values[n] - before)
            anchor[n] = before + settings["pull"] * means[n]
            continue
        if settings["name"] == "diloco":
            g, beta = -means[n], settings["outer_momentum"]
            outer[n] = beta * outer.get(n, np.zeros_like(g)) + g
            change = g + beta * outer[n] if settings["nesterov"] else outer[n]
            anchor[n] = before - settings["outer_rate"] * change
        else:
            anchor[n] = before + means[n]
        alpha = settings.get("mixing", 0.0)
        for rank in everyone:
            rank.values[n] = alpha * rank.values[n] + (1 - alpha) * anchor[n]
