"""Apart: what strategies share whose ranks hold different parameters between two meetings.

**A lost rank.** With `engine.recover = true` the others go on without it, in the call in which they
hear of it: they make the engine anew for those who are left (`Handle.reform`), meet, and hold the
same parameters then. Some may have come further in the training loop than others when they hear of
it; who is behind takes no steps until it is where the furthest was, so that all go on counting
alike. A rank that is late is not lost: that is a `Timeout`, which is raised.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from pathlib import Path

from compressa.errors import StateError
from compressa.hooks import Handle
from compressa.overlap.opening import trained
from compressa.parameters import as_real
from compressa.strategies.base import EngineStrategy, Training
from compressa.strategies.surviving import Surviving


class Apart(Surviving, EngineStrategy):
    """See the module.

    Args:
        training: What is trained.
        handle: Open for it.
    """

    _afresh = False  # whether survivors need nothing of what the engine's state was

    def __init__(self, training: Training, handle: Handle) -> None:
        EngineStrategy.__init__(self, training.model, training.optimizer, handle, training.scaler)
        Surviving.__init__(self, training)
        self._own = {n: as_real(p.detach()) for n, p in trained(training.model).items()}
        self._united = True
        self._calls = self._furthest = 0  # of step and sync, which all ranks make alike
        self._steps = 0

    def step(self) -> None:
        """Take a step of the optimizer; meet the other ranks if it is time to."""
        if self._is_behind():
            return
        self._step_optimizer()
        self._united = False
        self._steps += 1
        self._surviving(self._look_and_go_on)

    def sync(self) -> None:
        """Have all ranks hold the same parameters, unless they do already; see `Strategy.sync`.

        A lost rank is left out where the configuration recovers, else it is the PeerLost that all
        raise.
        """
        if not self._is_behind() and not self._united:
            self._surviving(self._unite)

    def save(self, path: str | Path) -> None:
        """Write what ranks keep; see `Strategy.save`."""
        if not self._united:
            raise StateError(
                f"strategy.save after step {self._steps}: ranks hold different parameters, and "
                "only what all agree on is saved; call strategy.sync() first, on all ranks"
            )
        super().save(path)

    @abstractmethod
    def _go_on(self) -> None:
        """After a step: meet if it is time to."""

    @abstractmethod
    def _unite(self) -> None:
        """Meet, so that all hold the same."""

    def _reunite(self) -> None:
        """Do so where a meeting may have failed on the way."""
        self._unite()

    def _is_behind(self) -> bool:
        self._calls += 1
        return self._calls <= self._furthest

    def _look_and_go_on(self) -> None:
        if self._recovers:
            self.handle.check()  # who is far from a meeting hears of a loss here
        self._go_on()

    def _go_on_without_the_lost(self) -> None:
        self.handle.reform(self._ranks, afresh=self._afresh)
        own = json.dumps([self._calls, self._steps]).encode()
        counts = self.handle.engine.session.all_gather(own, "going on")
        self._furthest, self._steps = max(map(json.loads, counts))
        self._reunite()
