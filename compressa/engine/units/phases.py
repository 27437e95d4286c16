"""Phases: which compressors are in force from which step on, and what becomes of their state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from compressa.aggregators.base import State, World
from compressa.compressor import Compressor
from compressa.engine.device_stream import DeviceStream, resources_for
from compressa.engine.units.phase import Phase, breakpoints
from compressa.engine.units.sums import Sums
from compressa.engine.units.units import UnitSizes
from compressa.parameters import ParameterInfo
from compressa.wrappers import Flushed, Warmup


class Phases:
    """Builds each phase when it begins, over one state.

    All state is there from the start, so that any checkpoint holds the same.

    Args:
        parameters: In the model's order.
        compressors: By parameter name, from the configuration's rules.
        sizes: How large units are.
        world: What aggregators need.
        sums: What will carry the exchanges.
        device_stream: Where state is kept.

    Attributes:
        compressors: By parameter name, with all that was switched.
    """

    def __init__(
        self,
        parameters: Sequence[ParameterInfo],
        compressors: Mapping[str, Compressor],
        sizes: UnitSizes,
        world: World,
        sums: Sums,
        device_stream: DeviceStream,
    ) -> None:
        self.compressors = compressors
        self._parameters = parameters
        self._sizes = sizes
        self._world = world
        self._sums = sums
        self._device_stream = device_stream
        self._switch_step: int | None = None
        self._switched: Mapping[str, Compressor] = {}
        for step in sorted(breakpoints(compressors)):
            self._build(step, compressors)

    def enter(self, step: int) -> Phase:
        """Build the phase of a step; at a switch, drop state that nobody will ask for.

        What the new compressors would have kept in phases before the switch stays: a checkpoint
        holds what a fresh engine asks for.

        Raises:
            BackendUnavailable: There is not enough memory for state.
        """
        if self._switch_step is None or step < self._switch_step:
            return self._build(step, self.compressors)
        self._switch_step = None
        state = self._world.state
        state.claimed.clear()
        for any_step in sorted({0, *breakpoints(self._switched)}):
            self._build(any_step, self._switched)
        for later in sorted(b for b in breakpoints(self.compressors) if b > step):
            self._build(later, self.compressors)
        phase = self._build(step, self.compressors)
        state.forget()
        return phase

    def attempt(self, compressors: Mapping[str, Compressor]) -> None:
        """Raise what would go wrong if other compressors were in force; change nothing.

        Args:
            compressors: By parameter name.

        Raises:
            BackendUnavailable: There is not enough memory for their state, beside what is kept.
            ConfigError: They can not work on these parameters.
        """
        for step in sorted({0, *breakpoints(compressors)}):
            self._build(step, compressors, State(self._device_stream.device))

    def switch(self, compressors: Mapping[str, Compressor], step: int) -> None:
        """Have other compressors in force from a step on, which must not have begun.

        What is owed to parameters is handed over; see `Engine.switch`.

        Args:
            compressors: By parameter name.
            step: The first that they are for.
        """
        after = {name: Flushed(compressor=new) for name, new in compressors.items()}
        self.compressors = {
            name: Warmup(dense=before, compressor=after[name], steps=step)
            for name, before in self.compressors.items()
        }
        self._switch_step, self._switched = step, compressors

    def succeed(self, old: Phases) -> None:
        """Go on with a switch that was announced to other phases of the same compressors."""
        self._switch_step, self._switched = old._switch_step, old._switched

    def _build(
        self, step: int, compressors: Mapping[str, Compressor], state: State | None = None
    ) -> Phase:
        world = self._world if state is None else replace(self._world, state=state)
        with self._device_stream.current(), resources_for("residuals and payloads"):
            return Phase(self._parameters, compressors, step, self._sizes, world, self._sums)
