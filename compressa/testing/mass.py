"""MassLedger: whether nothing is lost.

    sum_t out_t + (1/P) sum_i e_i(T) = (1/P) sum_t sum_i g_i(t)

for every parameter, through skipped steps and changes of world size, and in the long run through
all that may happen to a run on the way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from compressa.aggregators import narrow
from compressa.codecs import Int8, NoCompression, OneBit, TopK
from compressa.compressor import Compressor
from compressa.testing.inputs import MODEL, model_gradients
from compressa.testing.memory import require
from compressa.testing.world import LoopbackWorld
from compressa.wrappers import ErrorFeedback, Warmup

_ROUNDING = 2.0**-24  # half a unit in the last place of float32
LOSS_SCALE = 1024.0
STEPS = 100

# Residuals are handed on from one to the next, and delivered by dense steps.
_OTHERS: tuple[Compressor, ...] = (
    ErrorFeedback(codec=Int8(block=32)),
    ErrorFeedback(codec=TopK(density=0.05)),
    NoCompression(),
    ErrorFeedback(codec=OneBit(block=64)),
)
_SWITCHES = (55, 61, 67, 70, 77)


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


def check_mass(compressor: Compressor, exchange: str) -> None:
    """Nothing is lost in 40 steps, two of them skipped, on two sizes of world.

    Args:
        compressor: What is checked.
        exchange: As in `compressa.aggregators.base.World`.

    Raises:
        AssertionError: The property does not hold.
    """
    _follow(compressor, exchange, f"{compressor.name}, {exchange}", ((3, 20), (2, 40)))


def check_mass_of_run(compressor: Compressor) -> None:
    """Nothing is lost in 100 steps: warm-up, skips, resizes, switches to other codecs and back."""
    run = compressor
    turns = (NoCompression(), compressor, *_OTHERS)
    for before, end in zip(turns[::-1], (4, *_SWITCHES)[::-1], strict=True):
        run = Warmup(dense=before, steps=end, compressor=run)
    _follow(run, "auto", f"{compressor.name}", ((3, 20), (2, 35), (4, STEPS)), 1 << 14)


def _follow(
    compressor: Compressor,
    exchange: str,
    name: str,
    worlds: tuple[tuple[int, int], ...],
    unit_bytes: int = 2048,
) -> None:
    """Keep a ledger over several sizes of world, each up to a step; skip two steps of the first."""
    world = LoopbackWorld(worlds[0][0], MODEL, compressor, exchange=exchange, unit_bytes=unit_bytes)
    ledger = MassLedger(world)
    _run(ledger, world, worlds[0][1] - 4, name)
    _skip(ledger, world, name)
    _run(ledger, world, worlds[0][1], name)
    for size, end in worlds[1:]:
        before = world.size
        world = world.resized(size)
        ledger.check(world, f"{name}: when {before} ranks became {size}")
        _run(ledger, world, end, name)


def _skip(ledger: MassLedger, world: LoopbackWorld, name: str) -> None:
    """Skip a step, and one that overflowed on every rank."""
    ledger.step(world, model_gradients(world.size, world.next_step), skipped=True)
    ledger.check(world, f"{name}: after a skipped step")
    overflow = model_gradients(world.size, world.next_step, LOSS_SCALE)
    for own in overflow:
        own["weight"].fill_(torch.nan)
    ledger.step(world, overflow, loss_scale=LOSS_SCALE, skipped=True)
    ledger.check(world, f"{name}: after a step that overflowed")


def _run(ledger: MassLedger, world: LoopbackWorld, end: int, name: str) -> None:
    """Go on to a step; look at the ledger wherever another compressor comes into force."""
    while world.next_step < end:
        loss_scale = LOSS_SCALE if world.next_step % 2 else 1.0
        gradients = model_gradients(world.size, world.next_step, loss_scale)
        ledger.step(world, gradients, loss_scale=loss_scale)
        if world.next_step in (4, *_SWITCHES, end):
            ledger.check(world, f"{name}: after {world.next_step} steps on {world.size} ranks")
