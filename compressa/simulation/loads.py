"""Loads: which computing a unit's program asks for, and so what each byte of it takes.

A profile knows how long each unit's codec computes in all, on as many ranks as there were. Shared
out to the bytes that were made and worked on, it says what other numbers of ranks take.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from compressa.aggregators.base import Round, World
from compressa.collectives.base import Compute, Exchange, Program, Together
from compressa.engine.units.sums import Sums
from compressa.schedulers import UnitTimes
from compressa.simulation.phantoms import load_of, phantom_program

Rates = Mapping[str, float]
"""By stage, "encode" and "decode": seconds for each byte."""


def rates_of(rounds: Sequence[Round], times: UnitTimes, world: World, sums: Sums) -> Rates:
    """Return what each byte takes of a unit with these times.

    Args:
        rounds: The unit's.
        times: As measured.
        world: On how many ranks.
        sums: What carried it there.
    """
    loads = loads_of(phantom_program(rounds, world, sums))
    seconds = {"encode": times.encode_s, "decode": times.decode_s}
    return {stage: seconds[stage] / loads[stage] if loads[stage] else 0.0 for stage in seconds}


def loads_of(program: Program[None]) -> Counter[str]:
    """Run a program to its end, with whatever it wants; return the bytes of each stage."""
    loads: Counter[str] = Counter()
    received_bytes, answer = 0, None
    while True:
        try:
            operation = program.send(answer)
        except StopIteration:
            return loads
        answer = None
        if isinstance(operation, Together):
            for part in operation.programs:
                loads += loads_of(part)
        elif isinstance(operation, Compute):
            answer = made(operation)
            loads[operation.stage] += load_of(operation, answer, received_bytes)
        elif isinstance(operation, Exchange):
            answer = dict(operation.incoming)
            received_bytes = sum(buffer.numel() for buffer in answer.values())


def made(operation: Compute) -> Any:
    """Return what a computation makes: messages, if it encodes."""
    return operation.work() if operation.stage == "encode" else None
