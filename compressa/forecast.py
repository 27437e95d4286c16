"""Forecast: which exchanges a step will consist of, and how long each should take on a link.

Only the network's part: encoding and decoding come on top, and overlap with backward hides some.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from compressa.aggregators.base import Round, State
from compressa.collectives.algorithms import ALGORITHMS, segments_of
from compressa.collectives.choice import BACKEND, Costs, formula_s
from compressa.compressor import Compressor
from compressa.config import Config
from compressa.engine.units.sums import Sums, lowers
from compressa.engine.units.unit_runtime import UnitRuntime
from compressa.engine.units.units import UnitSizes, build_units
from compressa.engine.units.world import world_of
from compressa.parameters import ParameterInfo
from compressa.transports.loopback import Loopback, LoopbackTransport

_DENSE_BYTES = 4
_COLUMNS = 1024


class Exchange(NamedTuple):
    """One round of a unit.

    Attributes:
        compressor: Who asks for it.
        gradient_bytes: Of the unit, in float32.
        way: How it is carried: "all_gather", with the algorithm if not directly, "broadcast",
            "scatter_reduce", or the algorithm of a sum.
        size_bytes: Of what is summed, or of a rank's payload.
        plain: Whether any algorithm can sum it, and the backend's.
        seconds: Predicted; None without a link, or where the algorithm has no prediction.
        dense_s: What the gradient would take in float32 by the best algorithm.
    """

    compressor: str
    gradient_bytes: int
    way: str
    size_bytes: int
    plain: bool
    seconds: float | None
    dense_s: float | None


class Candidate(NamedTuple):
    """One way of summing so many bytes, and the numbers behind its predicted time.

    Attributes:
        name: Of the algorithm.
        messages: Through the busiest port; None of the backend's, which has a way of its own.
        port_bytes: Likewise.
        formula_s: What a, b and g say.
        factor: How much longer it took when it was measured.
        seconds: Predicted: both together.
    """

    name: str
    messages: int | None
    port_bytes: float | None
    formula_s: float
    factor: float
    seconds: float


@dataclass(frozen=True)
class Forecast:
    """What happens on so many ranks.

    Attributes:
        config: Says what is exchanged how.
        ranks: How many they are.
        costs: Of sums on the link; None if no link is known.
    """

    config: Config
    ranks: int
    costs: Costs | None

    def exchanges(
        self, parameters: Sequence[ParameterInfo], compressors: Mapping[str, Compressor]
    ) -> Counter[Exchange]:
        """Count the rounds of a step after any warm-up, in the order in which they come.

        Args:
            parameters: In the model's order.
            compressors: By parameter name.

        Raises:
            ConfigError: No message can be as long as a round.
        """
        last = max((b for c in compressors.values() for b in c.breakpoints), default=0)
        now = {p.name: compressors[p.name].at(last).for_parameter(p) for p in parameters}
        units = build_units(parameters, now, UnitSizes.of(self.config))
        world = world_of(self.config, 0, self.ranks, State())
        sums, found = self._sums(), Counter[Exchange]()
        for unit in units:
            runtime = UnitRuntime(unit, world)
            gradient_bytes = _DENSE_BYTES * unit.layout.elems
            for round_ in runtime.aggregator.rounds:
                found[self._exchange(sums, runtime.label, gradient_bytes, round_)] += 1
        return found

    def candidates(self, size_bytes: int) -> list[Candidate]:
        """Return what can sum so many bytes of plain values, the fastest first.

        Nothing if no link is known.
        """
        costs, ranks = self.costs, self.ranks
        if costs is None:
            return []
        names = costs.candidates(backend=self._backend)
        found = [_candidate(costs, name, size_bytes, ranks) for name in names]
        return sorted(found, key=lambda candidate: candidate.seconds)

    @property
    def _backend(self) -> bool:
        return self.config.schedule.pace_bits_per_s is None

    def _sums(self) -> Sums:
        transport = _Imagined(Loopback(self.ranks), 0)
        transport.offers_sums, transport.offers_tables = self._backend, lowers(self.config)
        overtaking = self.config.schedule.overtaking
        return Sums(
            transport, self.config.exchange.algorithm, costs=self.costs, overtaking=overtaking
        )

    def _exchange(
        self, sums: Sums, compressor: str, gradient_bytes: int, round_: Round
    ) -> Exchange:
        plan = sums.plan(round_)
        seconds = dense_s = None
        if self.costs is not None:
            seconds = plan.seconds(self.costs, backend=self._backend)
            best = self.costs.best(gradient_bytes, self.ranks, backend=self._backend)
            dense_s = self.costs.time_s(best, gradient_bytes, self.ranks)
        size_bytes = round_.capacity_bytes
        how = size_bytes, round_.dense, seconds, dense_s
        return Exchange(compressor, gradient_bytes, plan.described, *how)


class _Imagined(LoopbackTransport):
    """One of so many ranks, beside a backend, or one that runs sums as tables."""

    offers_sums = True
    offers_tables = False

    @property
    def sums(self) -> bool:
        """As is said."""
        return self.offers_sums

    @property
    def lowers(self) -> bool:
        """As is said."""
        return self.offers_tables


def _candidate(costs: Costs, name: str, size_bytes: int, ranks: int) -> Candidate:
    formula = formula_s(costs.link, name, size_bytes, ranks)
    factor = costs.factor(name, size_bytes)
    messages = port_bytes = None
    if name != BACKEND:
        stages = ALGORITHMS[name].stages(size_bytes, ranks)
        messages = segments_of(size_bytes, ranks) * sum(stage.messages for stage in stages)
        port_bytes = sum(stage.port_bytes for stage in stages)
    return Candidate(name, messages, port_bytes, formula, factor, factor * formula)


def parameter_of(size_bytes: int) -> ParameterInfo:
    """Return a parameter whose float32 gradient has so many bytes; a matrix, if it can be one.

    Args:
        size_bytes: At least 4; rounded down to whole elements.
    """
    elems = size_bytes // _DENSE_BYTES
    whole = elems % _COLUMNS == 0
    shape = (elems // _COLUMNS, _COLUMNS) if whole else (elems,)
    return ParameterInfo(0, f"{size_bytes} bytes", shape, torch.float32)
