"""Hostile messages in whole rounds: a step of three ranks ends, or is refused."""

from __future__ import annotations

import numpy as np
import torch

from compressa.compressor import Compressor
from compressa.engine.units.lockstep import Lockstep
from compressa.errors import CompressaError
from compressa.parameters import ParameterInfo
from compressa.testing.hostile import Tally
from compressa.testing.inputs import generator
from compressa.testing.memory import require
from compressa.testing.mutations import Bytes, Mutator

_RANKS = 3
_PARAMETERS = (ParameterInfo(0, "weight", (12, 20)), ParameterInfo(1, "v", (33,)))
_STEPS = 16  # then the ranks begin anew, since what was accepted may have grown
_ROOM_BYTES = 4096


class RoundFuzz:
    """Steps in which one message is replaced by a mutation of it.

    What is refused raises a `CompressaError`. What is accepted may be any number, finite or not,
    but leaves no residual that is not finite: it would never leave it again.

    Args:
        compressor: Of all ranks.
        seed: Of the mutations.
        exchange: As in `compressa.aggregators.World`.
        algorithm: As in the configuration's `exchange`.
    """

    def __init__(
        self, compressor: Compressor, seed: int, exchange: str = "auto", algorithm: str = "auto"
    ) -> None:
        self.name = f"{compressor.name}, {exchange}, {algorithm}"
        self.tally = Tally()
        self._compressor = compressor
        self._exchange, self._algorithm = exchange, algorithm
        self._mutator = Mutator(seed)
        self._gradients = [
            {p.name: torch.randn(p.shape, generator=generator(rank)) for p in _PARAMETERS}
            for rank in range(_RANKS)
        ]
        self._ranks = self._new_ranks()
        self._seen: list[Bytes] = []
        self._step(self._note)

    def run(self, count: int) -> None:
        """Run `count` steps."""
        for _ in range(count):
            if self._ranks.next_step >= _STEPS:
                self._ranks = self._new_ranks()
            self.tally.count(self._attempt())

    def _attempt(self) -> bool:
        """Run one step; return whether it ended well."""
        target, number = self._mutator.below(len(self._seen)), 0

        def touch(data: torch.Tensor) -> torch.Tensor:
            nonlocal number
            number += 1
            return self._mutated(data) if number == target + 1 else data

        try:
            self._step(touch)
        except CompressaError:
            self._ranks = self._new_ranks()
            return False
        except Exception as error:
            story = f"a hostile message raised {type(error).__name__} ({error})"
            raise AssertionError(f"{self.name}: {story} instead of a CompressaError") from error
        for state in self._ranks.states:
            for key, vector in state.vectors.items():
                finite = bool(vector.isfinite().all())
                require(finite, f"{self.name}: a hostile message leaves {key} not finite")
        return True

    def _step(self, touch: object) -> None:
        own = [{name: part.clone() for name, part in parts.items()} for parts in self._gradients]
        self._ranks.step(own, touch)  # type: ignore[arg-type]

    def _note(self, data: torch.Tensor) -> torch.Tensor:
        self._seen.append(data.numpy().copy())
        return data

    def _mutated(self, data: torch.Tensor) -> torch.Tensor:
        room: Bytes = np.zeros(2 * data.numel() + _ROOM_BYTES, np.uint8)
        if self._mutator.below(3) == 0:  # what is not finite must not stay, so it comes often
            length = data.numel()
            room[:length] = data.numpy()
            return torch.from_numpy(room[: self._mutator.poison(room, length)])
        other = self._seen[self._mutator.below(len(self._seen))]
        return torch.from_numpy(room[: self._mutator.mutate(data.numpy(), other, room)])

    def _new_ranks(self) -> Lockstep:
        how, algorithm = self._exchange, self._algorithm
        made = self._compressor
        return Lockstep(_RANKS, _PARAMETERS, made, exchange=how, algorithm=algorithm)
