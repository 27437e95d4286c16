"""StaleCopy: values that a worker trains, beside those that servers keep.

After each step the worker counts its clock on, and sends what all steps since the last exchange
did as one update, if the answer to the one before is there. It goes on meanwhile, unless what it
holds lacks updates that it must have (`Consistency`): so while the wire is busy steps go on, and
updates get longer. When an answer comes, what was done since its update left is put on top of it.

A key of statistics (`exact`) sends what they are, and not what was done to them: ranks that all
send the same decay of a variance would make it negative. Where all take each step together that
cannot be, since the mean of what was done leads to the mean.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from compressa.arrays import carried_over
from compressa.parameter_server.handle import Handle
from compressa.parameter_server.worker import Worker


class StaleCopy:
    """See the module.

    Args:
        worker: Of servers that keep values.
        keys: Their names.
        own: What this worker trains, by key, of their shapes: contiguous float32 on the CPU. Equal
            to what servers keep.
        staleness: s of the consistency.
        step: The last step that was done.

    Attributes:
        own: As given; written to where answers come.
        clock: The last step that was done.
        front: The step up to which it has all workers' updates.
        landings: How many answers were taken.
    """

    def __init__(
        self,
        worker: Worker,
        keys: Sequence[str],
        own: Sequence[torch.Tensor],
        staleness: float,
        step: int = -1,
    ) -> None:
        self.own = list(own)
        self.clock = self.front = self._left = step
        self.landings = 0
        self._worker, self._keys, self._staleness = worker, list(keys), staleness
        self._began = [values.clone() for values in own]
        exact = {key.name for key in worker.parameters if key.exact and staleness}
        self._whole = [key in exact for key in keys]
        # An answer comes after the update was encoded, and may be written over it.
        self._way = [torch.empty_like(values) for values in own]
        self._flight: Handle | None = None

    def advance(self, rate: float = 1.0) -> None:
        """Count a step of `own`; take an answer that has come, and send an update if one may.

        Args:
            rate: The step's learning rate, where delays are compensated.
        """
        self.clock += 1
        if self._flight is not None and self._flight.done:
            self.land()
        if self._flight is None:
            self._depart(rate)

    @property
    def behind(self) -> bool:
        """Whether it lacks updates that the next step must begin with; then `land`."""
        return self.front < self.clock - self._staleness

    @property
    def awaited(self) -> Handle | None:
        """The exchange under way."""
        return self._flight

    def land(self) -> None:
        """Wait for the answer to the last update, and go on from it.

        Raises:
            CompressaError: A rank is lost or late, or something is wrong with the answer.
        """
        assert self._flight is not None, "an update is on its way"
        self._worker.wait(self._flight)
        self._flight = None
        self.landings += 1
        self.front = min(map(self._worker.front, self._keys))
        moved = self.clock > self._left
        for own, began, came, whole in zip(
            self.own, self._began, self._way, self._whole, strict=True
        ):
            if moved and whole:
                own.copy_(carried_over(own, began, came))
            elif moved:
                own.add_(came - began)
            else:
                own.copy_(came)
            began.copy_(came)
        self.clock = max(self.clock, self.front)  # whoever was not waited for goes on with them

    def catch_up(self, rate: float = 1.0) -> None:
        """Wait until nothing is lacking.

        Raises:
            CompressaError: As `land`.
        """
        while self.behind:
            if self._flight is None:
                self._depart(rate)
            self.land()

    def finish(self, rate: float = 1.0) -> None:
        """Send what was not sent, and wait for the answer.

        Raises:
            CompressaError: As `land`.
        """
        if self._flight is not None:
            self.land()
        if self.clock > self._left:
            self._depart(rate)
            self.land()

    def meet(self, rate: float = 1.0) -> None:
        """Send what was not sent, wait for all workers, and go on from the same values. Collective.

        Raises:
            CompressaError: As `land`.
        """
        self.finish(rate)
        self._worker.wait(self._worker.meet(self._way))
        self.clock = self.front = self._left = min(map(self._worker.front, self._keys))
        for own, began, came in zip(self.own, self._began, self._way, strict=True):
            own.copy_(came)
            began.copy_(came)

    def _depart(self, rate: float) -> None:
        for own, began, way, whole in zip(
            self.own, self._began, self._way, self._whole, strict=True
        ):
            if whole:
                way.copy_(own)
            else:
                torch.sub(own, began, out=way)
            began.copy_(own)
        self._left = self.clock
        self._worker.push(self._keys, self._way, step=self.clock, rate=rate)
        self._flight = self._worker.pull(self._keys, self._way, step=self.clock)
