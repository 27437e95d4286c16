"""Calls: what a blocking call does on the caller's own thread.

To hand a small sum over to the communication thread and to be woken at its end takes longer than
the sum. So the caller carries it out, for as long as that is short.
"""

from __future__ import annotations

from compressa.collectives.base import LoweredSum, Operation, Program
from compressa.transports.base import Key, Transport


def run_here(
    program: Program[None], transport: Transport, step: int
) -> tuple[int, Program[None] | None]:
    """Run a program's lowered sums on this thread, as long as they take little time.

    Args:
        program: Not begun.
        transport: Carries it.
        step: Names its exchanges.

    Returns:
        The number of the next exchange, and what is left to do, for the communication thread; None
        if nothing is.
    """
    stage = 0
    while True:
        try:
            operation = next(program)
        except StopIteration:
            return stage, None
        key = Key(step, 0, stage)
        if not (isinstance(operation, LoweredSum) and transport.sum_now(key, operation)):
            return stage, _resumed(operation, program)
        stage += operation.exchanges


def _resumed(operation: Operation, program: Program[None]) -> Program[None]:
    """Return what asks for an operation that a program has asked for already, and goes on."""
    while True:
        answer = yield operation
        try:
            operation = program.send(answer)
        except StopIteration:
            return
