"""Surviving: with `engine.recover = true`, ranks go on without one that is lost.

They do so in the call of the training loop in which they hear of it. A rank that is late is not
lost: that is a `Timeout`, which is raised.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch.distributed as dist

from compressa.errors import PeerLost
from compressa.strategies.base import Training


class Surviving(ABC):
    """Ranks that go on by themselves.

    Args:
        training: What is trained.
    """

    def __init__(self, training: Training) -> None:
        self._recovers = training.config.engine.recover
        self._ranks = dist.get_process_group_ranks(training.group) if self._recovers else []

    @abstractmethod
    def _go_on_without_the_lost(self) -> None:
        """Begin anew among `_ranks`, of the default group, who all call this."""

    def _surviving(self, call: Callable[[], None], again: bool = False) -> None:
        """Do something; if a rank is lost meanwhile, go on without it, and without the next one.

        Args:
            call: What may fail.
            again: Whether to do it once more then.
        """
        try:
            call()
        except PeerLost as error:
            if not self._recovers:
                raise
            lost = self._ranks.pop(error.rank)
            self._surviving(self._go_on_without_the_lost)
            warnings.warn(
                f"rank {lost} is lost, and the other {len(self._ranks)} go on without it, from "
                f"parameters that all of them hold ({error})",
                RuntimeWarning,
                stacklevel=2,
            )
            if again:
                self._surviving(call, again=True)
