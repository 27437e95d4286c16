"""Peers of torch operations: run one after the other, or made one by `torch.compile`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.kernels.cases import PeerUnavailable
from benchmarks.kernels.operands import Operands
from benchmarks.timing import Call

Operate = Callable[[torch.Tensor], object]

_WARM_UP_CALLS = 2
_REASON_LETTERS = 60


@dataclass(frozen=True)
class TorchPeer:
    """A function of one gradient after the other, of torch operations only.

    Attributes:
        begin: Makes the function, of the operands and the case's compressor.
    """

    begin: Callable[[Operands, Any], Operate]

    def __call__(self, operands: Operands, compressor: Any) -> Call:
        """Return a call that runs the operations as they are written."""
        return _of_each(operands, self.begin(operands, compressor))

    def compiled(self, operands: Operands, compressor: Any) -> Call:
        """Return a call that runs them as `torch.compile` makes them, which is done by now.

        Raises:
            PeerUnavailable: It can not: Triton is missing, for one.
        """

        def make() -> Call:
            operate: Operate = torch.compile(self.begin(operands, compressor), dynamic=False)
            return _of_each(operands, operate)

        call = tried(make)
        operands.reset()
        return call


def tried(make: Callable[[], Call]) -> Call:
    """Make a call, and return it when it has run.

    Raises:
        PeerUnavailable: One of the two fails.
    """
    try:
        call = make()
        for _ in range(_WARM_UP_CALLS):
            call()
    except Exception as error:
        raise PeerUnavailable(reason(error)) from error
    return call


def reason(error: Exception) -> str:
    """Return an error in a few words."""
    said = " ".join(str(error).split())[:_REASON_LETTERS]
    return f"fails ({type(error).__name__}: {said})"


def _of_each(operands: Operands, operate: Operate) -> Call:
    turns = operands.turns()
    return lambda: operate(next(turns)[0])
