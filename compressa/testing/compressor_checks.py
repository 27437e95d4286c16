"""What every compressor owes among several ranks; `conformance.check_compressor` runs them all."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from compressa.bias import LOSSLESS
from compressa.codecs.base import codec_of
from compressa.compressor import Compressor
from compressa.errors import ConfigError
from compressa.parameters import ParameterInfo
from compressa.testing.hostile_rounds import RoundFuzz
from compressa.testing.inputs import MODEL, model_gradients
from compressa.testing.memory import require, same_bits
from compressa.testing.rank import Gradients
from compressa.testing.world import LoopbackWorld
from compressa.transports.loopback import Loopback

_SEED, _ROUNDS = 20, 100
EXCHANGES = ("all_reduce", "all_gather", "scatter_reduce", "per_hop")
DTYPES = (torch.float16, torch.bfloat16, torch.float64)


def exchanges_of(compressor: Compressor) -> list[str]:
    """Return the exchanges that a compressor can be told to use, "auto" if it has its own.

    A sum in 16 bits loses what no residual keeps, so it is not among them.
    """
    codec = codec_of(compressor)
    if codec is None:
        return ["auto"]
    fitting = []
    for exchange in EXCHANGES:
        try:
            LoopbackWorld(2, MODEL, compressor, exchange=exchange)
        except ConfigError:
            continue
        lossy = codec.reduce is not None and codec.reduce.dtype.itemsize < 4
        if not (exchange == "all_reduce" and lossy):
            fitting.append(exchange)
    return fitting


@dataclass(frozen=True)
class RankChecks:
    """What a compressor owes among ranks by one exchange: a property a method.

    Each runs some steps of `inputs.MODEL` in a `LoopbackWorld`, and raises an AssertionError that
    names compressor and exchange if the property does not hold.

    Attributes:
        compressor: What is checked.
        exchange: As in `compressa.aggregators.base.World`.
    """

    compressor: Compressor
    exchange: str = "auto"

    @property
    def name(self) -> str:
        """Compressor and exchange, for messages."""
        return f"{self.compressor.name}, {self.exchange}"

    def replicas(self, size: int) -> None:
        """Every rank gets the same bits."""
        for step, means in enumerate(self._first_steps(size)):
            for rank in range(size):
                sentence = f"{self.name}, step {step}: of {size} ranks, rank {rank}"
                _require_same(means[rank], means[0], f"{sentence} differs from rank 0")

    def repeats(self) -> None:
        """A second run gives the same bits."""
        runs = (self._first_steps(3) for _ in range(2))
        for first, second in zip(*runs, strict=True):
            _require_same(first[0], second[0], f"{self.name}: a second run differs")

    def _first_steps(self, size: int) -> list[list[Gradients]]:
        world = self._world(size)
        return [world.step(model_gradients(size, step)) for step in range(3)]

    def order(self) -> None:
        """Neither the order in which gradients become ready nor the network changes a bit."""
        plain = self._world(3)
        slow = Loopback(3, latency_s=1e-3, bandwidth_bytes_per_s=1e5)
        other = self._world(3, loopback=slow, policy="priority")
        units = list(range(plain.unit_count))
        ready = [units[::-1], units[1:] + units[:1], units]
        for step in range(3):
            gradients = model_gradients(3, step)
            first = plain.step(gradients)
            second = other.step(gradients, ready=ready, late_s=(0.02, 0.0, 0.3))
            sentence = f"{self.name}: the bits depend on the order of arrival"
            for rank in range(3):
                _require_same(first[rank], second[rank], sentence)
                _require_same(plain.states[rank].vectors, other.states[rank].vectors, sentence)

    def overflow(self) -> None:
        """What is not finite on one rank is seen by all, and is gone after the skipped step."""
        for value in (torch.nan, -torch.inf):
            world = self._world(3)
            world.step(model_gradients(3, 0))
            gradients = model_gradients(3, 1)
            gradients[1]["weight"][2, 3] = value
            for rank, mean in enumerate(world.step(gradients)):
                seen = not bool(mean["weight"].isfinite().all())
                require(seen, f"{self.name}: rank {rank} does not see that rank 1 has a {value}")
            _require_finite(world, f"{self.name}: a {value} stays")
            world.rollback()
            _require_finite(world, f"{self.name}: a {value} comes back with the skipped step")
            for mean in world.step(model_gradients(3, 2)):
                clean = all(bool(part.isfinite().all()) for part in mean.values())
                require(clean, f"{self.name}: the step after a {value} is not finite either")

    def hold_zeros(self) -> None:
        """A parameter that may be unused keeps its residual, and its gradient stays zero."""
        world = self._world(3)
        for step in range(3):
            world.step(model_gradients(3, step))
        before = [state.vectors["residual/weight"].clone() for state in world.states]
        gradients = model_gradients(3, 3)
        for own in gradients:
            own["weight"].zero_()
        means = world.step(gradients, hold_zeros=True)
        for rank, state in enumerate(world.states):
            name = f"{self.name}, rank {rank}"
            same = torch.equal(state.vectors["residual/weight"], before[rank])
            require(same, f"{name}: an unused parameter's residual was used up")
            require(not means[rank]["weight"].any(), f"{name}: an unused parameter gets a gradient")

    def state(self) -> None:
        """All state is there before the first step, so that checkpoints of any step fit."""
        world = self._world(3)
        with tempfile.TemporaryDirectory() as folder:
            world.save(Path(folder))
            before = [{key: v.shape for key, v in state.vectors.items()} for state in world.states]
            for step in range(2):
                world.step(model_gradients(3, step))
            for old, state in zip(before, world.states, strict=True):
                new = {key: vector.shape for key, vector in state.vectors.items()}
                changed = sorted(old.items() ^ new.items())
                sentence = f"{self.name}: state that was not there before the first step: {changed}"
                require(not changed, sentence)
            world.load(Path(folder))

    def layouts(self) -> None:
        """Gradients in another memory order come out with the same values, in that order."""
        plain, other = (self._world(2) for _ in range(2))
        for step in range(2):
            gradients = model_gradients(2, step)
            turned = [{name: _turned(part) for name, part in own.items()} for own in gradients]
            first, second = plain.step(gradients)[1], other.step(turned)[1]
            sentence = f"{self.name}: gradients that are not contiguous come out wrong"
            plainly = {name: part.contiguous() for name, part in second.items()}
            _require_same(first, plainly, sentence)
            kept = all(second[name].stride() == part.stride() for name, part in turned[1].items())
            require(kept, f"{self.name}: the memory order of a gradient changed")

    def dtypes(self) -> None:
        """Gradients of every dtype come out in it, with what float32 gives, rounded once."""
        # What is sent dense is summed in its own dtype, and so rounds in another way.
        first = self.compressor.at(0)
        lossy = [p.name for p in MODEL if not is_exact(first.for_parameter(p))]
        for dtype in DTYPES:
            name = f"{self.name}, {dtype}"
            parameters = [replace(p, dtype=dtype) for p in MODEL]
            # One unit, so that all dtypes are cut alike.
            world = self._world(3, parameters, unit_bytes=1 << 20)
            single = self._world(3, unit_bytes=1 << 20)
            for step in range(2):
                gradients = [_cast(own, dtype) for own in model_gradients(3, step)]
                means = world.step(gradients)
                due = single.step([_cast(own, torch.float32) for own in gradients])[0]
                for rank, mean in enumerate(means):
                    _require_same(mean, means[0], f"{name}: rank {rank} differs from rank 0")
                _require_same(
                    {name: means[0][name] for name in lossy},
                    _cast({name: due[name] for name in lossy}, dtype),
                    f"{name}: is not what float32 gives",
                )

    def hostile_rounds(self) -> None:
        """Hostile messages are refused, or lead to a step like any other."""
        RoundFuzz(self.compressor, _SEED, self.exchange).run(_ROUNDS)

    def _world(
        self, size: int, parameters: Sequence[ParameterInfo] = MODEL, **more: Any
    ) -> LoopbackWorld:
        return LoopbackWorld(size, parameters, self.compressor, exchange=self.exchange, **more)


def keeps_residuals(compressor: Compressor) -> bool:
    """Whether a compressor keeps what it does not send."""
    world = LoopbackWorld(2, MODEL, compressor)
    return "residual/weight" in world.states[0].vectors


def is_exact(compressor: Compressor) -> bool:
    """Whether a compressor loses nothing in the first place."""
    codec = codec_of(compressor)
    return codec is not None and codec.bias(1000) == LOSSLESS


def _cast(gradients: Gradients, dtype: torch.dtype) -> Gradients:
    return {name: gradient.to(dtype) for name, gradient in gradients.items()}


def _turned(gradient: torch.Tensor) -> torch.Tensor:
    """Return the same values with the dimensions the other way round in memory."""
    backwards = range(gradient.ndim)[::-1]
    return gradient.permute(*backwards).contiguous().permute(*backwards)


def _require_same(a: Gradients, b: Gradients, sentence: str) -> None:
    require(a.keys() == b.keys(), sentence)
    for name, tensor in a.items():
        require(same_bits(tensor, b[name]), f"{sentence} ({name})")


def _require_finite(world: LoopbackWorld, sentence: str) -> None:
    for state in world.states:
        for key, vector in state.vectors.items():
            require(bool(vector.isfinite().all()), f"{sentence} in {key}")
