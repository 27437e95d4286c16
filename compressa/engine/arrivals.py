"""Arrivals: which gradients of a step have come, and what is owed to whoever brought them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from compressa.engine.device_stream import Mark, Ticket
from compressa.engine.units.phase import Phase
from compressa.errors import StateError

Gradients = dict[str, torch.Tensor]


class Arrivals:
    """The gradients of one step at a time. Not for several threads at once.

    Args:
        shapes: Of the gradients, by parameter name.

    Attributes:
        missing: Names of the gradients of the step that have not come.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self._shapes = shapes
        self._phase: Phase | None = None
        self.missing: set[str] = set()
        self._names_of: dict[int, int] = {}  # of the phase: of each unit, how many
        self._units_of: dict[str, int] = {}
        self._gradients: Gradients = {}
        self._marks: dict[str, Mark] = {}
        self._waiting: dict[int, int] = {}
        self._untaken: dict[str, int] = {}
        self._tickets: dict[Ticket, set[int]] = {}

    @property
    def open(self) -> bool:
        """Whether the step is not over: a gradient has not come, or a unit is not done."""
        return bool(self.missing or self._tickets)

    def begin(self, phase: Phase) -> None:
        """Begin a step, of which all of a phase's units will be done; the last one must be over."""
        if phase is not self._phase:
            self._phase = phase
            self._names_of = {i: len(unit.names) for i, unit in enumerate(phase.units)}
            self._units_of = {name: len(units) for name, units in phase.units_of.items()}
        self.missing = set(phase.units_of)
        self._waiting, self._untaken = self._names_of.copy(), self._units_of.copy()

    def arrive(
        self, gradients: Mapping[str, torch.Tensor], mark: Mark, ticket: Ticket
    ) -> list[int]:
        """Note gradients; return the numbers of the units that are complete now.

        Args:
            gradients: By parameter name, each of its parameter's shape.
            mark: When they are ready, on their device.
            ticket: What is owed to whoever brought them, until all of their units are done.

        Raises:
            StateError: One is unknown, has come before, or has another shape.
        """
        assert self._phase is not None, "no step has begun"
        missing, shapes, waiting = self.missing, self._shapes, self._waiting
        for name, gradient in gradients.items():
            if name not in missing:
                raise StateError(f"{name!r} is unknown, or was submitted twice in one step")
            if gradient.shape != shapes[name]:
                raise StateError(
                    f"the gradient of {name!r} has the shape {tuple(gradient.shape)}, where "
                    f"{shapes[name]} is due"
                )
        missing.difference_update(gradients)
        self._gradients.update(gradients)
        self._marks.update(dict.fromkeys(gradients, mark))
        ready, owed, units_of = [], set(), self._phase.units_of
        for name in gradients:
            for unit in units_of[name]:
                owed.add(unit)
                waiting[unit] -= 1
                if not waiting[unit]:
                    ready.append(unit)
        if owed:
            self._tickets[ticket] = owed
        return ready

    def owes(self, ticket: Ticket) -> bool:
        """Return whether a unit with what a ticket's gradients belong to is not done."""
        return ticket in self._tickets

    def take(self, numbers: Iterable[int]) -> tuple[Gradients, set[Mark]]:
        """Return complete units' gradients, by name, and the marks of who brought them; once."""
        assert self._phase is not None, "no step has begun"
        gradients, marks, untaken = Gradients(), set[Mark](), self._untaken
        for number in numbers:
            for name in self._phase.units[number].names:
                gradients[name] = self._gradients[name]
                marks.add(self._marks[name])
                untaken[name] -= 1
                if not untaken[name]:  # nobody else's from now on: DDP may free its bucket
                    del self._gradients[name], self._marks[name]
        return gradients, marks

    def done(self, numbers: Iterable[int]) -> list[Ticket]:
        """Note that units are done; return the tickets that nothing is owed to any more."""
        over, paid = set(numbers), []
        for ticket, units in list(self._tickets.items()):
            units -= over
            if not units:
                del self._tickets[ticket]
                paid.append(ticket)
        return paid

    def give_up(self) -> list[Ticket]:
        """Nothing more will be done; return the tickets that something is owed to."""
        tickets, self._tickets = list(self._tickets), {}
        return tickets
