"""Peers out of libraries that need not be installed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from benchmarks.kernels.cases import PeerUnavailable
from benchmarks.kernels.operands import Operands
from benchmarks.kernels.peers_torch import reason, tried
from benchmarks.timing import Call


def bitsandbytes(operands: Operands, codec: Any) -> Call:
    """`quantize_blockwise` of bitsandbytes: eight bits of its dynamic map, in blocks as long.

    Raises:
        PeerUnavailable: It is not installed, or fails.
    """
    quantize: Any = _imported("bitsandbytes.functional").quantize_blockwise
    turns = operands.turns()
    return tried(lambda: lambda: quantize(next(turns)[0], blocksize=codec.block))


def _imported(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise PeerUnavailable("not installed") from error
    except Exception as error:
        raise PeerUnavailable(reason(error)) from error
