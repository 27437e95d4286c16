"""Lockstep: the units of all ranks, driven exchange by exchange, with nothing between them.

A `LoopbackWorld` goes through drivers, a network and a clock, as a training run does. Here each
rank's program runs up to its next exchange, the bytes are copied to where they are due, and
all go on: the arithmetic alone, fast, with nothing allocated besides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from compressa.aggregators.base import CPU, State, StepContext, World
from compressa.collectives.base import Compute, Exchange, Operation, Program, SideBySide
from compressa.compressor import Compressor
from compressa.engine.units.sums import Sums
from compressa.engine.units.unit_runtime import UnitRuntime, all_delivered_finite
from compressa.engine.units.units import UnitSizes, build_units
from compressa.errors import PayloadError
from compressa.parameters import ParameterInfo
from compressa.transports.loopback import Loopback

Touch = Callable[[torch.Tensor], torch.Tensor]
"""What a rank sends -> what arrives."""


class Lockstep:
    """`size` ranks that combine gradients step by step.

    Args:
        size: Number of ranks.
        parameters: The model's parameters.
        compressor: For all of them.
        exchange: As in `compressa.aggregators.World`.
        algorithm: As in the configuration's `exchange`.
        unit_bytes: Dense bytes at which a unit is full.
        device: Where all ranks have their gradients and state.

    Attributes:
        states: Each rank's state.
        next_step: Number of the next step.
    """

    def __init__(
        self,
        size: int,
        parameters: Sequence[ParameterInfo],
        compressor: Compressor,
        *,
        exchange: str = "auto",
        algorithm: str = "auto",
        unit_bytes: int = 1 << 30,
        device: torch.device = CPU,
    ) -> None:
        self.states = [State(device) for _ in range(size)]
        self.next_step = 0
        # These transports are asked for rank and size only.
        self._sums = [Sums(transport, algorithm) for transport in Loopback(size).transports]
        now = {p.name: compressor.at(0).for_parameter(p) for p in parameters}
        units = build_units(parameters, now, UnitSizes(unit_bytes, 1, unit_bytes))
        worlds = [World(rank, size, 0, exchange, state) for rank, state in enumerate(self.states)]
        self._units = [[UnitRuntime(unit, world) for unit in units] for world in worlds]

    def step(
        self,
        gradients: Sequence[Mapping[str, torch.Tensor]],
        touch: Touch = lambda data: data,
        *,
        check_finite: bool = False,
    ) -> Sequence[Mapping[str, torch.Tensor]]:
        """Combine one step's gradients, in place.

        Args:
            gradients: By rank and parameter name, each of its parameter's shape and dtype; hold the
                means afterwards.
            touch: Takes every message under way, uint8, and returns what arrives of it.
            check_finite: Whether `finite` is to be known of this step.

        Returns:
            The gradients that were given.

        Raises:
            CompressaError: What arrived was refused.
        """
        context = StepContext(self.next_step)
        self.next_step += 1
        for index in range(len(self._units[0])):
            run_alike(
                [
                    self._program(rank, index, own, context, check_finite)
                    for rank, own in enumerate(gradients)
                ],
                touch,
            )
        return gradients

    @property
    def finite(self) -> bool:
        """Whether all means of the last step are finite, if that was to be checked."""
        return all_delivered_finite(unit for units in self._units for unit in units)

    def rollback(self) -> None:
        """Skip the last step: what it sent returns to the residuals."""
        for unit in (unit for units in self._units for unit in units):
            unit.aggregator.rollback(StepContext(self.next_step - 1))

    def _program(
        self,
        rank: int,
        index: int,
        gradients: Mapping[str, torch.Tensor],
        context: StepContext,
        check_finite: bool,
    ) -> Program[None]:
        unit = self._units[rank][index]
        carriers = list(map(self._sums[rank].carrier, unit.rounds))
        return unit.program(gradients, context, carriers, check_finite=check_finite)


def run_alike(programs: Sequence[Program[None]], touch: Touch = lambda data: data) -> None:
    """Run programs, one of each rank, that ask for the same exchanges in the same order.

    Args:
        programs: By rank; not begun. They ask for no sum of the transport's.
        touch: Takes every message under way, uint8, and returns what arrives of it.

    Raises:
        PayloadError: What arrives is longer than its buffer, or does not fill it and must.
        CompressaError: What a program raises.
    """
    asked = [_advance(program, None) for program in programs]
    while asked[0] is not None:
        if isinstance(asked[0], SideBySide):
            spread = [operation for operation in asked if isinstance(operation, SideBySide)]
            for side_by_side in zip(*(each.programs for each in spread), strict=True):
                run_alike(side_by_side, touch)
            answers: Sequence[object] = [None] * len(programs)
        else:
            exchanges = [operation for operation in asked if isinstance(operation, Exchange)]
            answers = _carried(exchanges, touch)
        asked = [_advance(*pair) for pair in zip(programs, answers, strict=True)]


def _advance(program: Program[None], answer: object) -> Exchange | SideBySide | None:
    """Run one rank up to its next exchanges; None at its end."""
    try:
        operation: Operation = program.send(answer)
        while isinstance(operation, Compute):
            operation = program.send(operation.work())
    except StopIteration:
        return None
    assert isinstance(operation, (Exchange, SideBySide)), "the ranks in lockstep have no backend"
    return operation


def _carried(asked: Sequence[Exchange], touch: Touch) -> list[dict[int, torch.Tensor]]:
    """Return what each rank receives; all that is sent is read before anything goes on."""
    received: list[dict[int, torch.Tensor]] = [{} for _ in asked]
    for sender, exchange in enumerate(asked):
        for receiver, data in exchange.outgoing.items():
            theirs = asked[receiver]
            arrived, buffer = touch(data), theirs.incoming[sender]
            received[receiver][sender] = _landed(arrived, buffer, theirs.exact)
    return received


def _landed(arrived: torch.Tensor, buffer: torch.Tensor, exact: bool) -> torch.Tensor:
    length, due = arrived.numel(), buffer.numel()
    if length > due or (exact and length != due):
        raise PayloadError(f"{length} bytes arrived where {due} are due")
    return buffer[:length].copy_(arrived)
