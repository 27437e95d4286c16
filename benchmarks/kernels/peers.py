"""Peers out of libraries: torch operations, one by one or compiled, and bitsandbytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
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

        call = _tried(make)
        operands.reset()
        return call


def bitsandbytes(operands: Operands, codec: Any) -> Call:
    """`quantize_blockwise` of bitsandbytes: eight bits of its dynamic map, in blocks as long.

    Raises:
        PeerUnavailable: It is not installed, or fails.
    """
    try:
        quantize: Any = import_module("bitsandbytes.functional").quantize_blockwise
    except ModuleNotFoundError as error:
        raise PeerUnavailable("not installed") from error
    except Exception as error:
        raise PeerUnavailable(_reason(error)) from error
    turns = operands.turns()
    return _tried(lambda: lambda: quantize(next(turns)[0], blocksize=codec.block))


def _tried(make: Callable[[], Call]) -> Call:
    """Make a call, and return it when it has run.

    Raises:
        PeerUnavailable: One of the two fails.
    """
    try:
        call = make()
        for _ in range(_WARM_UP_CALLS):
            call()
    except Exception as error:
        raise PeerUnavailable(_reason(error)) from error
    return call


def _reason(error: Exception) -> str:
    """Return an error in a few words."""
    said = " ".join(str(error).split())[:_REASON_LETTERS]
    return f"fails ({type(error).__name__}: {said})"


def _of_each(operands: Operands, operate: Operate) -> Call:
    turns = operands.turns()
    return lambda: operate(next(turns)[0])
