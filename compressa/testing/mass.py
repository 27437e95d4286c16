"""MassLedger: whether nothing is lost.

    sum_t out_t + (1/P) sum_i e_i(T) = (1/P) sum_t sum_i g_i(t)

for every parameter, through skipped steps and changes of world size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from compressa.aggregators import narrow
from compressa.testing.memory import require
from compressa.testing.world import LoopbackWorld

_ROUNDING = 2.0**-24  # half a unit in the last place of float32


class MassLedger:
    """Books what is given to a world and what comes out, in float64.

    The tolerance follows from float32 rounding. In a step each value passes, on each of P
    ranks, through at most three roundings for the weight, its product and the sum over ranks,
    and through six more for p = g + e, p - decode(p), a correction with the loss scale, and the
    owner's error; each is at most 2^-24 of the largest magnitude M that has occurred. After T
    steps at most T (3 P + 6) 2^-24 M are missing. One lost element is of the size of M.
    """

    def __init__(self, world: LoopbackWorld) -> None:
        self._given = {p.name: torch.zeros(p.shape, dtype=torch.float64) for p in world.parameters}
        self._delivered = {name: zero.clone() for name, zero in self._given.items()}
        self._largest = 0.0
        self._roundings = 0

    def step(
        self,
        world: LoopbackWorld,
        gradients: Sequence[Mapping[str, torch.Tensor]],
        *,
        loss_scale: float = 1.0,
        skipped: bool = False,
        hold_zeros: bool = False,
    ) -> None:
        """Run a step and book it.

        Args:
            world: Its ranks.
            gradients: By rank and parameter name, of the parameter's shape; a parameter with a
                value that is not finite must have one on every rank, since what the others give
                would come back to them only.
            loss_scale: What they were multiplied by.
            skipped: Roll it back: what has a residual gets all of it back.
            hold_zeros: As in `compressa.aggregators.base.StepContext`.
        """
        means = world.step(gradients, loss_scale=loss_scale, hold_zeros=hold_zeros)[0]
        if skipped:
            world.rollback()
        for name, mean in means.items():
            given = sum(own[name].double() for own in gradients) / (world.size * loss_scale)
            assert isinstance(given, torch.Tensor)
            if skipped and not (self._has_residual(world, name) and given.isfinite().all()):
                continue
            self._given[name] += given
            if not skipped:
                self._delivered[name] += mean.double() / loss_scale
            sizes = (given, mean.double() / loss_scale, *self._residuals(world, name))
            self._largest = max(self._largest, *(float(part.abs().max()) for part in sizes))
        self._roundings += 3 * world.size + 6

    def check(self, world: LoopbackWorld, when: str) -> None:
        """Require that given = delivered + mean residual, for every parameter.

        Args:
            world: Whose residuals count: the one that went on last.
            when: Begins the message.

        Raises:
            AssertionError: More is missing than rounding explains.
        """
        tolerance = self._roundings * _ROUNDING * self._largest
        for name, given in self._given.items():
            kept = torch.zeros_like(given)
            for residual in self._residuals(world, name):
                kept += residual.double().view(given.shape) / world.size
            missing = float((given - self._delivered[name] - kept).abs().max())
            sentence = (
                f"{when}: {missing:.3g} of parameter {name!r} is neither delivered nor in a "
                f"residual; rounding explains {tolerance:.3g}"
            )
            require(missing <= tolerance, sentence)

    @staticmethod
    def _has_residual(world: LoopbackWorld, name: str) -> bool:
        """Whether the compressor in force keeps one; another phase's may be there besides."""
        return f"residual/{name}" in world.states[0].claimed

    @staticmethod
    def _residuals(world: LoopbackWorld, name: str) -> list[torch.Tensor]:
        key = f"residual/{name}"
        return [narrow.widened(s.vectors[key]) for s in world.states if key in s.vectors]
