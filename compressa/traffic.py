"""Traffic: how many bytes each rank sends and receives in a step, counted without data.

The real collectives run on every rank of an imagined world, with tensors that have a size only.
Headers of frames are not counted, and payloads that vary in length count as long as they may be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from compressa.aggregators.base import Round, State, World
from compressa.aggregators.single import build_aggregator
from compressa.collectives.base import Compute, Exchange, Program, SideBySide
from compressa.compressor import Compressor
from compressa.config import Config
from compressa.engine.units.sums import Sums
from compressa.engine.units.units import UnitSizes, build_units
from compressa.engine.units.world import world_of
from compressa.parameters import ParameterInfo
from compressa.simulation.phantoms import phantom_program
from compressa.transports.loopback import Loopback, LoopbackTransport

_DENSE_BYTES = 4


@dataclass(frozen=True)
class Port:
    """What one rank sends and receives.

    Attributes:
        sent_bytes: To all others together.
        received_bytes: From all others together.
    """

    sent_bytes: int = 0
    received_bytes: int = 0

    def __add__(self, other: Port) -> Port:
        """Both, one after the other."""
        sent_bytes = self.sent_bytes + other.sent_bytes
        return Port(sent_bytes, self.received_bytes + other.received_bytes)

    @property
    def busier_bytes(self) -> int:
        """Bytes of the busier direction: a port carries both at the same time."""
        return max(self.sent_bytes, self.received_bytes)


def busiest_bytes(rounds: Sequence[Round], ranks: int, algorithm: str = "auto") -> int:
    """Return what passes the busier direction of the busiest rank's port.

    Args:
        rounds: What an aggregator asks for in a step.
        ranks: How many ranks there are.
        algorithm: That of sums, as in `exchange.algorithm`.

    Example:
        >>> import torch
        >>> from compressa.aggregators.base import Verb
        >>> busiest_bytes([Round(Verb.ALL_GATHER, torch.uint8, 100)], 4)
        300
    """
    return max(port.busier_bytes for port in ports(rounds, ranks, algorithm))


def ports(rounds: Sequence[Round], ranks: int, algorithm: str = "auto") -> list[Port]:
    """Return what passes the port of each rank, by rank.

    Args:
        rounds: What an aggregator asks for in a step.
        ranks: How many ranks there are.
        algorithm: That of sums, as in `exchange.algorithm`.
    """
    return [_port(transport, rounds, algorithm) for transport in Loopback(ranks).transports]


def dense_ring_bytes(elems: int, ranks: int) -> float:
    """Return what a ring all-reduce of float32 sends from each rank: 2 (P - 1) / P times all.

    Args:
        elems: Number of float32 values.
        ranks: P, at least 1.
    """
    return 2 * (ranks - 1) / ranks * _DENSE_BYTES * elems


def ratios(
    config: Config,
    parameters: Sequence[ParameterInfo],
    compressors: Mapping[str, Compressor],
    ranks: int,
) -> dict[Compressor, float]:
    """Return a dense ring's bytes over those of the busiest rank, after any warm-up.

    Below 1, the busiest rank's steps take more bytes than those of float32 without compression.

    Args:
        config: Says how units are cut and exchanged.
        parameters: In the model's order.
        compressors: By parameter name.
        ranks: How many ranks there are.

    Returns:
        By compressor, as it is after any warm-up, of all parameters that it compresses.
    """
    last = max((b for c in compressors.values() for b in c.breakpoints), default=0)
    now = {p.name: compressors[p.name].at(last).for_parameter(p) for p in parameters}
    world = world_of(config, 0, ranks, State())
    dense: Counter[Compressor] = Counter()
    busiest: Counter[Compressor] = Counter()
    for unit in build_units(parameters, now, UnitSizes.of(config)):
        dense[unit.compressor] += unit.layout.elems
        rounds = build_aggregator(unit.compressor, unit.layout, world).rounds
        busiest[unit.compressor] += busiest_bytes(rounds, ranks, config.exchange.algorithm)
    return {own: dense_ring_bytes(dense[own], ranks) / busiest[own] for own in dense}


def _port(transport: LoopbackTransport, rounds: Sequence[Round], algorithm: str) -> Port:
    world = World(transport.rank, transport.size, 0, "auto", State())
    return _run(phantom_program(rounds, world, Sums(transport, algorithm)))


def _run(program: Program[None]) -> Port:
    """Go through a program as if whatever it waits for had come."""
    port, answer = Port(), None
    while True:
        try:
            operation = program.send(answer)
        except StopIteration:
            return port
        answer = None
        if isinstance(operation, Exchange):
            received_bytes = sum(buffer.numel() for buffer in operation.incoming.values())
            port += Port(operation.outgoing_bytes, received_bytes)
            answer = dict(operation.incoming)
        elif isinstance(operation, Compute):
            answer = operation.work()
        elif isinstance(operation, SideBySide):
            port = sum(map(_run, operation.programs), port)
