"""What 1-bit Adam and 1-bit LAMB share: a dense warm-up, then a frozen variance.

    warm-up:  g = mean_i g_i;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
    after:    m = C(mean_i C(b1 m + (1 - b1) g_i)), with residuals on both sides;  v stays

The engine is told of both: its own warm-up sends the gradients of the first steps in float32, and
what it is given then are momenta.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as dist

from compressa.config import Config, Source
from compressa.errors import ConfigError
from compressa.optim.base import CompressedOptimizer, Parameters
from compressa.optim.configuration import Sections, Wanted, compressors_of
from compressa.optim.lists import Tensors
from compressa.optim.parts import Part
from compressa.optim.refusals import is_count, outside

ONE_BIT: Sections = {"compressor": {"name": "onebit"}, "exchange": {"kind": "scatter_reduce"}}
"""The papers' compressor: scaled signs, with error feedback of the ranks and of the owners."""


def fault_of_adam(group: Mapping[str, Any]) -> str:
    """Return what is wrong about the settings of Adam, or nothing."""
    if not isinstance(group["betas"], tuple | list) or len(group["betas"]) != 2:
        return f"betas = {group['betas']}; give two numbers, for momentum and variance"
    return outside(group, "betas", 0.0, 1.0) or outside(group, "eps", 0.0)


def check_scaled(config: Config) -> None:
    """Refuse signs without a scale: what comes out would be no momentum.

    Raises:
        ConfigError: A compressor sends such.
    """
    if "signsgd" in compressors_of(config):
        raise ConfigError(
            "the compressor signsgd sends signs without a scale, of which no momentum can be made; "
            "use onebit, or compressa.optim.SignSGD"
        )


class FrozenVariance(CompressedOptimizer):
    """Adam's moments, of which the second one is frozen after the warm-up.

    State of a parameter: "exp_avg" and "exp_avg_sq", the same on all ranks. An element that had no
    gradient in the whole warm-up has an infinite variance afterwards and stays as it is: scaled
    signs would move it, by a step without bound.

    Args:
        params: As `CompressedOptimizer` takes them.
        defaults: Settings, "betas" and "eps" among them.
        warmup_steps: How many are dense.
        config: As `CompressedOptimizer` takes it.
        group: As `CompressedOptimizer` takes it.
        foreach: As `CompressedOptimizer` takes it.
    """

    def __init__(
        self,
        params: Parameters,
        defaults: dict[str, Any],
        warmup_steps: int,
        *,
        config: Source | None,
        group: dist.ProcessGroup | None,
        foreach: bool,
    ) -> None:
        self._warmup_steps = warmup_steps
        steps = warmup_steps if is_count(warmup_steps) else 0  # others are refused in own words
        wanted = Wanted(ONE_BIT, {"warmup": {"steps": steps}}, check_scaled)
        super().__init__(params, defaults, wanted, config=config, group=group, foreach=foreach)

    def _fault(self, group: Mapping[str, Any]) -> str:
        if not is_count(self._warmup_steps):
            return (
                f"warmup_steps = {self._warmup_steps}; it must be a number of steps, at least 1, "
                "since the variance is learnt in these (15 to 25 % of all are usual)"
            )
        return fault_of_adam(group)

    @property
    def _frozen(self) -> bool:
        return self._taken >= self._warmup_steps

    def _step(self, parts: Sequence[Part]) -> None:
        if self._frozen:
            self._exchange_momenta(parts)
        else:
            self._exchange_gradients(parts)
        for part in parts:
            self._update(part)
            if self._taken + 1 == self._warmup_steps:
                self._freeze(part)

    def _exchange_gradients(self, parts: Sequence[Part]) -> None:
        self._average(parts, lambda part: part.grads)
        for part in parts:
            beta1, beta2 = part.group["betas"]
            self._lists.decay(part.kept("exp_avg"), beta1, part.grads)
            squares = self._lists("mul", part.grads, part.grads)
            self._lists.decay(part.kept("exp_avg_sq"), beta2, squares)

    def _exchange_momenta(self, parts: Sequence[Part]) -> None:
        for part in parts:
            self._lists.decay(part.kept("exp_avg"), part.group["betas"][0], part.grads)
        self._average(parts, lambda part: part.kept("exp_avg"))

    def _freeze(self, part: Part) -> None:
        """Keep the variance as it is; an element without one never moves again."""
        for variance in part.kept("exp_avg_sq"):
            variance.masked_fill_(variance == 0, math.inf)

    def _denominators(self, part: Part, kind: str, steps: int) -> Tensors:
        """Return sqrt(v / (1 - b2^steps)) + eps."""
        roots = self._lists("sqrt", part.kept(kind))
        self._lists("div_", roots, math.sqrt(1.0 - part.group["betas"][1] ** steps))
        return self._lists("add_", roots, part.group["eps"])

    def _directions(self, part: Part) -> Tensors:
        """Return m / (1 - b1^t) over the denominators."""
        steps = self._taken + 1
        denominators = self._denominators(part, "exp_avg_sq", min(steps, self._warmup_steps))
        momenta = self._lists("div", part.kept("exp_avg"), 1.0 - part.group["betas"][0] ** steps)
        return self._lists("div_", momenta, denominators)

    @abstractmethod
    def _update(self, part: Part) -> None:
        """Move the parameters of a group; the moments are those of the step."""
