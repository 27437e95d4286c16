"""HeldGradients: a gradient that completes nothing is of no use to the engine yet.

To submit each one by itself would cost Python at each parameter. So those that have come are held
back until units that go together have all of theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch

Awaited = tuple[Mapping[str, Sequence[int]], dict[int, int]]


class HeldGradients:
    """Those of one step at a time, which have come and were not submitted.

    Args:
        awaited: Returns what the step that has begun still waits for, as `Engine.awaited`.
    """

    def __init__(self, awaited: Callable[[], Awaited]) -> None:
        self._awaited = awaited
        self._held: dict[str, torch.Tensor] = {}
        self._begun = False
        self._missing: Awaited | None = None

    def __bool__(self) -> bool:
        return bool(self._held)

    def begin(self) -> None:
        """Begin a step; what is held of another is dropped."""
        self._held, self._begun, self._missing = {}, False, None

    def add(self, name: str, values: torch.Tensor) -> bool:
        """Hold a gradient; return whether those that are held have to be submitted now.

        Args:
            name: Of its parameter.
            values: As `Engine.submit` takes it.
        """
        self._held[name] = values
        if not self._begun:  # the first begins the engine's step, which knows what goes together
            self._begun = True
            return True
        return self._counted(name)

    def pass_by(self, names: Iterable[str]) -> None:
        """Some gradients are about to be submitted that were not held."""
        if self._begun:
            for name in names:
                self._counted(name)
        self._begun = True

    def take(self, names: Iterable[str] | None = None) -> dict[str, torch.Tensor]:
        """Return what is held, and hold it no longer.

        Args:
            names: Of what; all if not given.
        """
        if names is None:
            held, self._held = self._held, {}
            return held
        return {name: self._held.pop(name) for name in names if name in self._held}

    def _counted(self, name: str) -> bool:
        """Note that a gradient is there; return whether it is the last of what goes together."""
        if self._missing is None:
            self._missing = self._awaited()
        groups_of, missing = self._missing
        complete = False
        for group in groups_of[name]:
            missing[group] -= 1
            complete |= not missing[group]
        return complete
