"""1-bit LAMB (Li et al., 2021): LAMB at first, then momenta of one bit, and rates that go on.

u = (m / (1 - b1^t)) / (sqrt(v / (1 - b2^min(t, w))) + eps) + decay x
x = x - lr c u

warm-up:  c = clip(||x|| / ||u||), per parameter; its moving average is kept
after:    c = r average(c), where r follows how the variance would have changed:
          g' = (m_t - b1 m_{t-1}) / (1 - b1), the gradient that the momenta tell
          v' = b2 v' + (1 - b2) g'^2
          r  = max((sqrt(v) + eps) / (sqrt(v') + eps)), clipped, and near the last r
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from compressa.config import Source
from compressa.optim.adam import FrozenVariance
from compressa.optim.base import Parameters
from compressa.optim.lists import Tensors
from compressa.optim.parts import Part
from compressa.optim.refusals import outside


class OneBitLamb(FrozenVariance):
    """LAMB for `warmup_steps`, with dense gradients; then with compressed momenta.

    State of a parameter: besides the moments, "scaling_avg", the moving average of c, "fresh_sq",
    v', and "factor", r; the same on all ranks. Norms are summed in float64 and rounded to float32,
    so that ranks on other processors get the same bits. The paper scales momenta of different
    parameters alike before it compresses them as one vector; here each block has a scale anyway.
    Volume as for `OneBitAdam`.

    Args:
        params: As `CompressedOptimizer` takes them.
        warmup_steps: Of how many steps variance and scaling coefficients are.
        lr: Learning rate.
        betas: b1 and b2, decay of momentum and variance.
        eps: Added to the root of the variance.
        weight_decay: Part of u, as LAMB has it.
        scaling_beta: Decay of the moving average of c.
        scaling_limits: Least and largest c.
        factor_limits: Least and largest r.
        factor_change: Largest relative change of r in a step.
        config: As `CompressedOptimizer` takes it; None for `onebit` by scatter-reduce.
        group: Who takes part.
        foreach: As `CompressedOptimizer` takes it.

    Raises:
        CompressaError: As `CompressedOptimizer`.

    Example:
        >>> opt = OneBitLamb(net.parameters(), warmup_steps=1000)  # doctest: +SKIP
    """

    def __init__(
        self,
        params: Parameters,
        warmup_steps: int,
        *,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        scaling_beta: float = 0.9,
        scaling_limits: tuple[float, float] = (0.01, 10.0),
        factor_limits: tuple[float, float] = (0.5, 4.0),
        factor_change: float = 0.1,
        config: Source | None = None,
        group: dist.ProcessGroup | None = None,
        foreach: bool = True,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "scaling_beta": scaling_beta,
            "scaling_limits": scaling_limits,
            "factor_limits": factor_limits,
            "factor_change": factor_change,
        }
        super().__init__(
            params, defaults, warmup_steps, config=config, group=group, foreach=foreach
        )

    def _fault(self, group: Mapping[str, Any]) -> str:
        for name in ("scaling_limits", "factor_limits"):
            low, high = group[name]
            if not 0 < low <= high:
                return f"{name} = {group[name]}; give two positive numbers, the smaller one first"
        unit = ("scaling_beta", "factor_change")
        return super()._fault(group) or "".join(outside(group, n, 0.0, 1.0) for n in unit)

    def _exchange_momenta(self, parts: Sequence[Part]) -> None:
        before = [
            self._lists("mul", part.kept("exp_avg"), part.group["betas"][0]) for part in parts
        ]
        super()._exchange_momenta(parts)
        for part, old in zip(parts, before, strict=True):
            beta1, beta2 = part.group["betas"]
            told = self._lists("sub", part.kept("exp_avg"), old)
            self._lists("div_", told, 1.0 - beta1)
            self._lists.decay(part.kept("fresh_sq"), beta2, self._lists("mul", told, told))

    def _freeze(self, part: Part) -> None:
        for fresh, variance in zip(part.kept("fresh_sq"), part.kept("exp_avg_sq"), strict=True):
            fresh.copy_(variance)
        super()._freeze(part)

    def _update(self, part: Part) -> None:
        changes = self._directions(part)
        decay = part.group["weight_decay"]
        if decay:
            self._lists("add_", changes, self._lists("mul", part.params, decay))
        scalings = self._kept_scalings(part) if self._frozen else self._scalings(part, changes)
        self._lists("mul_", changes, scalings)
        self._lists("mul_", changes, -part.group["lr"])
        self._lists("add_", part.params, changes)

    def _scalings(self, part: Part, changes: Tensors) -> Tensors:
        """Return c of each parameter in the warm-up, float32[], and note it."""
        beta, limits = part.group["scaling_beta"], part.group["scaling_limits"]
        found = []
        for state, parameter, change in zip(part.states, part.params, changes, strict=True):
            weight, length = _norm(parameter), _norm(change)
            ratio = (weight / length).clamp(*limits)
            ratio = torch.where((weight > 0) & (length > 0), ratio, torch.ones_like(ratio))
            average = state.setdefault("scaling_avg", torch.zeros_like(ratio))
            average.mul_(beta).add_(ratio * (1.0 - beta))
            found.append(ratio)
        return found

    def _kept_scalings(self, part: Part) -> Tensors:
        """Return r times the average of c, of each parameter, float32[]."""
        frozen = self._denominators(part, "exp_avg_sq", self._warmup_steps)
        fresh = self._denominators(part, "fresh_sq", self._taken + 1)
        low, high = part.group["factor_limits"]
        change = part.group["factor_change"]
        share = 1.0 - part.group["scaling_beta"] ** self._warmup_steps  # the average began at 0
        found = []
        for state, old, new in zip(part.states, frozen, fresh, strict=True):
            ratio = torch.where(old.isinf(), 0.0, old / new).max().clamp(low, high)
            last = state.setdefault("factor", torch.ones_like(ratio))
            last.copy_(torch.clamp(ratio, last * (1.0 - change), last * (1.0 + change)))
            found.append(last * (state["scaling_avg"] / share))
        return found


def _norm(values: torch.Tensor) -> torch.Tensor:
    norm: torch.Tensor = torch.linalg.vector_norm(values, dtype=torch.float64)
    return norm.float()
