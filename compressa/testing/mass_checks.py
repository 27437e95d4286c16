"""Conservation of mass in the long run, through all that may happen to a run on the way."""

from __future__ import annotations

import torch

from compressa.codecs import Int8, NoCompression, OneBit, TopK
from compressa.compressor import Compressor
from compressa.testing.inputs import MODEL, model_gradients
from compressa.testing.mass import MassLedger
from compressa.testing.world import LoopbackWorld
from compressa.wrappers import ErrorFeedback, Warmup

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
        scale = LOSS_SCALE if world.next_step % 2 else 1.0
        gradients = model_gradients(world.size, world.next_step, scale)
        ledger.step(world, gradients, loss_scale=scale)
        if world.next_step in (4, *_SWITCHES, end):
            ledger.check(world, f"{name}: after {world.next_step} steps on {world.size} ranks")
