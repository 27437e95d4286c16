"""Draw: where in a run an encode happens, and so which random bits it has."""

from __future__ import annotations

from dataclasses import dataclass

from compressa.kernels.philox import Noise


@dataclass(frozen=True)
class Draw:
    """Where in the run an encode happens: the counter of counter-based random bits.

    Attributes:
        seed: The run's seed; the same on every rank.
        step: Optimizer step.
        parameter: Index of the parameter.
        start: First element of the scope within its parameter.
        rank: The encoding rank, for private streams; shared streams ignore it.
        owner: Whether the owner of a shard encodes the mean (a stream of its own too).
    """

    seed: int
    step: int
    parameter: int
    start: int
    rank: int
    owner: bool = False

    def private_noise(self, stream: int) -> Noise:
        """Return random numbers that no other rank, stage or codec draws.

        Args:
            stream: The codec's wire id.
        """
        whose = stream << 24 | int(self.owner) << 23 | self.rank
        return Noise(self.seed, whose, self.step, self.parameter, self.start)
