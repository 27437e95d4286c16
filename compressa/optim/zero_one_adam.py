"""0/1 Adam (Lu et al., 2022): the variance seldom learns, and ranks seldom meet, by one bit.

Each rank i keeps its own momentum, and sums what it has moved since ranks met last:

    m_i = b1 m_i + (1 - b1) g_i;  u_i = u_i + rate m_i;  x_i = x_i - rate m_i / d
    where ranks meet:  u = C(mean_i C(u_i)), with residuals on both sides
                       x = x' - u / d;  m = u / (sum of rates);  u_i = 0

with x' as of the last meeting, rate = lr / (1 - b1^t) and d = sqrt(v / (1 - b2^n)) + eps after n
updates of v. The j-th of these comes 2^(j // kappa) steps after the one before it, until the
warm-up is over; there the mean gradient is dense, and serves m and x, too. Until then ranks meet in
every step, afterwards every 2^k steps, k being how often the learning rate has halved.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from compressa.config import Config, Source
from compressa.engine.measuring.stats import CompressorStats, Stats
from compressa.errors import StateError
from compressa.hooks import Handle
from compressa.hooks.opening import open_handle
from compressa.optim.adam import ONE_BIT, check_scaled, fault_of_adam
from compressa.optim.base import CompressedOptimizer, Parameters
from compressa.optim.configuration import Wanted
from compressa.optim.lists import Tensors
from compressa.optim.parts import Part, by_name, like_exchanged
from compressa.optim.refusals import is_count


class ZeroOneAdam(CompressedOptimizer):
    """Adam whose variance is updated at growing intervals, and whose ranks meet at growing ones.

    Between two meetings ranks hold different parameters: call `sync` before an evaluation, and
    before `save`. State of a parameter: "exp_avg", "exp_avg_sq", "moved" (u), "anchor" (x').

    Three things differ from the listing in the paper. The bias of both moments is corrected, as
    Adam does, or the first steps would be too long. A new variance is used in its own step. And
    where the variance learns, the dense gradient is all that is sent, as in the authors' program.
    An element that never had a gradient stays as it is, whatever its scaled sign says.

    Args:
        params: As `CompressedOptimizer` takes them.
        warmup_steps: The steps in which the variance learns, and ranks meet every time.
        kappa: After how many updates of the variance their interval doubles.
        max_interval: Most steps between two meetings.
        lr: Learning rate.
        betas: b1 and b2, decay of momentum and variance.
        eps: Added to the root of the variance.
        weight_decay: Decoupled.
        config: As `CompressedOptimizer` takes it; None for `onebit` by scatter-reduce.
        group: Who takes part.
        foreach: As `CompressedOptimizer` takes it.

    Raises:
        CompressaError: As `CompressedOptimizer`.

    Example:
        >>> opt = ZeroOneAdam(net.parameters(), warmup_steps=1000)  # doctest: +SKIP
    """

    def __init__(
        self,
        params: Parameters,
        warmup_steps: int,
        *,
        kappa: int = 16,
        max_interval: int = 16,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        config: Source | None = None,
        group: dist.ProcessGroup | None = None,
        foreach: bool = True,
    ) -> None:
        self._warmup_steps, self._kappa, self._longest = warmup_steps, kappa, max_interval
        settings = {"warmup_steps": warmup_steps, "kappa": kappa, "max_interval": max_interval}
        progress = {
            "peak_lr": 0.0,
            "rates": 0.0,  # their sum since ranks met
            "apart": 0,  # steps since ranks met
            "interval": 1,
            "variances": 0,  # how often the variance was updated
            "next_variance": 0,
        }
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(
            params,
            {**defaults, **progress, **settings},
            Wanted(ONE_BIT, check=check_scaled),
            config=config,
            group=group,
            foreach=foreach,
        )
        with self.handle.closed_on_error():
            self._dense = self._open_dense()

    def sync(self) -> None:
        """Have all ranks hold the same parameters. Collective; call it after the same step on all.

        Raises:
            CompressaError: As `step`.
        """
        if not self._united:
            with self.handle.closed_on_error(), torch.no_grad():
                self._meet([self._part(group) for group in self.param_groups])

    def save(self, folder: str | Path) -> None:
        """Write what each rank keeps by itself; see `CompressedOptimizer.save`.

        Raises:
            StateError: Ranks are between two meetings.
        """
        if not self._united:
            raise StateError(
                f"{self._caller}.save after step {self._taken}: ranks hold different parameters, "
                "and only what all agree on is saved; call sync() first, on all ranks"
            )
        super().save(folder)

    def stats(self) -> Stats:
        """Return what was exchanged, dense and compressed together."""
        return _sum(self._dense.stats(), self.handle.stats())

    @property
    def _handles(self) -> list[Handle]:
        return [self.handle, self._dense]

    @property
    def _united(self) -> bool:
        return not self._first["apart"]

    @property
    def _first(self) -> dict[str, Any]:
        """The group that is asked for what all groups have alike."""
        return self.param_groups[0]

    def _fault(self, group: Mapping[str, Any]) -> str:
        for name in ("warmup_steps", "kappa", "max_interval"):
            if not is_count(group[name]):
                return f"{name} = {group[name]}; it must be a whole number, at least 1"
        return fault_of_adam(group)

    def _go_on(self) -> None:
        """Have steps go on as they are: no compressor's depends on how many there were."""

    def _step(self, parts: Sequence[Part]) -> None:
        self._note(peak_lr=max(self._first["peak_lr"], self._rate))
        if self._taken < self._warmup_steps and self._taken >= self._first["next_variance"]:
            self._learn(parts)
            return
        for part in parts:
            self._move(part)
        self._note(apart=self._first["apart"] + 1)
        if self._first["apart"] >= self._first["interval"]:
            self._meet(parts)

    def _learn(self, parts: Sequence[Part]) -> None:
        """Take a step of Adam with dense gradients; ranks meet in every step around it."""
        ticket = self._dense.submit(by_name(parts, lambda part: part.grads))
        self._dense.wait([ticket], "gradients")
        count = self._first["variances"] + 1
        self._note(variances=count, next_variance=self._taken + 2 ** ((count - 1) // self._kappa))
        for part in parts:
            beta1, beta2 = part.group["betas"]
            self._lists.decay(part.kept("exp_avg"), beta1, part.grads)
            squares = self._lists("mul", part.grads, part.grads)
            self._lists.decay(part.kept("exp_avg_sq"), beta2, squares)
            self._shrink(part)
            self._go(part, self._lists("mul", part.kept("exp_avg"), self._length(part)))

    def _move(self, part: Part) -> None:
        """Take a step with this rank's own momentum; its end is where ranks may meet."""
        length, moved = self._length(part), part.kept("moved")
        self._shrink(part)
        anchors = part.kept("anchor")
        if self._first["apart"]:
            self._lists("mul_", anchors, 1.0 - part.group["lr"] * part.group["weight_decay"])
        else:
            self._lists("copy_", anchors, part.params)
        self._lists.decay(part.kept("exp_avg"), part.group["betas"][0], part.grads)
        step = self._lists("mul", part.kept("exp_avg"), length)
        self._lists("add_", moved, step)
        part.group["rates"] += length
        self._go(part, step)

    def _meet(self, parts: Sequence[Part]) -> None:
        """Go on from where all ranks have moved together."""
        self._average(parts, lambda part: part.kept("moved"))
        for part in parts:
            moved, momenta, rates = part.kept("moved"), part.kept("exp_avg"), part.group["rates"]
            self._lists("copy_", momenta, moved)
            self._lists("mul_", momenta, 1.0 / rates if rates else 0.0)
            self._lists("copy_", part.params, part.kept("anchor"))
            self._go(part, moved)
            self._lists("zero_", moved)
        over = self._taken + 1 >= self._warmup_steps
        self._note(rates=0.0, apart=0, interval=self._interval() if over else 1)

    def _go(self, part: Part, way: Tensors) -> None:
        """Move the parameters against `way` over the root of the variance."""
        variances = part.kept("exp_avg_sq")
        roots = self._lists("sqrt", variances)
        count = max(self._first["variances"], 1)
        self._lists("div_", roots, math.sqrt(1.0 - part.group["betas"][1] ** count))
        self._lists("add_", roots, part.group["eps"])
        for root, variance in zip(roots, variances, strict=True):
            root.masked_fill_(variance == 0, math.inf)
        self._lists("sub_", part.params, self._lists("div", way, roots))

    def _length(self, part: Part) -> float:
        beta: float = part.group["betas"][0]
        return float(part.group["lr"]) / (1.0 - beta ** (self._taken + 1))

    @property
    def _rate(self) -> float:
        return max(float(group["lr"]) for group in self.param_groups)

    def _interval(self) -> int:
        """Steps until ranks meet: twice as many for each halving of the learning rate."""
        rate, peak = self._rate, self._first["peak_lr"]
        if rate <= 0.0:
            return self._longest
        halvings = math.floor(math.log2(peak / rate) + 1e-9)
        return int(min(2 ** min(halvings, 62), self._longest))

    def _note(self, **progress: Any) -> None:
        for group in self.param_groups:
            group.update(progress)

    def _open_dense(self) -> Handle:
        """Open an engine for the gradients from which the variance learns."""
        own = self.handle.config
        same = {"exchange": own.exchange, "schedule": own.schedule, "engine": own.engine}
        config = Config().model_copy(update=same)
        tensors = {name: like_exchanged(p) for name, p in self._trained.items()}
        return open_handle(self._caller, config, tensors, self.handle.group)


def _sum(one: Stats, other: Stats) -> Stats:
    """Return the sums of all that is counted."""
    counted = [f.name for f in fields(Stats) if f.name not in ("compressors", "overlap")]
    sums = {name: getattr(one, name) + getattr(other, name) for name in counted}
    compressors = dict(one.compressors)
    for name, stats in other.compressors.items():
        known = compressors.get(name, CompressorStats())
        values = {f.name: getattr(known, f.name) + getattr(stats, f.name) for f in fields(stats)}
        compressors[name] = CompressorStats(**values)
    return Stats(**sums, compressors=compressors)
