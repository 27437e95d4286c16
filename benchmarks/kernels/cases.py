"""Case: one compressor, what is done with it, what it should reach, what it is compared with."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
import torch
from compressa.kernels import cuda

from benchmarks.kernels.operands import Operands
from benchmarks.timing import Call
from compressa.aggregators.base import AllGather, Request, State, StepContext, World
from compressa.aggregators.single import build_aggregator
from compressa.arrays import as_array
from compressa.codecs import Codec
from compressa.compressor import Compressor
from compressa.compressors import COMPRESSORS
from compressa.parameters import Layout, ParameterInfo, Segment

_FLOAT_BYTES = 4
SUMMED = 4  # payloads of a sum


class PeerUnavailable(Exception):  # noqa: N818 - the event, as in compressa.errors
    """A peer can not be measured here; the message says why, in a few words."""


class Operation(Enum):
    """What a call does, as training does it.

    Compressors that are no codecs have whole steps only, whatever a case asks for.
    """

    ENCODE = "encode"  # Codec.encode
    FEEDBACK = "encode with residual"  # Codec.encode_feedback
    DECODE = "decode and add"  # Codec.decode_add
    SUM = "sum"  # Codec.decode_sum
    STEP = "whole step"  # Aggregator.run, in a world of one rank


class Least(NamedTuple):
    """The least that a figure should be, by device; None where nothing is asked.

    Attributes:
        cpu: On CPUs.
        gpu: On GPUs.
    """

    cpu: float | None = None
    gpu: float | None = None

    def on(self, device: str) -> float | None:
        """Return what is asked on a device, by the name that rows give it."""
        return self.cpu if device == "cpu" else self.gpu


NO_TARGET = Least()


@dataclass(frozen=True)
class Peer:
    """A plain implementation of the same operation.

    Attributes:
        name: What it is.
        prepare: Makes a call of it, from the operands and the case's compressor; raises
            `PeerUnavailable` where there is none.
        least_speedup: How many times faster than it the case should be.
        devices: Kinds of devices that it can be measured on.
        takes_half: Whether it is measured beside cases of gradients of 16 bits as well.
    """

    name: str
    prepare: Callable[[Operands, Any], Call]
    least_speedup: Least = NO_TARGET
    devices: frozenset[str] = frozenset({"cpu", "cuda"})
    takes_half: bool = True


@dataclass(frozen=True, kw_only=True)
class Case:
    """One row of the table.

    Attributes:
        name: Of the compressor and the operation; `--case` matches it.
        compressor: Name in the contract table; the case waits until it is there.
        operation: What a call does.
        hyper: Hyper-parameters that differ from their defaults.
        bus_bytes_per_elem: What must cross the memory bus where gradients have 32 bits, but for a
            whole step's result; None: follows from the operation.
        least_share: Of the limit; a case without a target on GPUs is not measured there.
        peers: What it is compared with.
        shape: For compressors of matrices: the one shape that is measured.
        main: Whether it stands for its kind where every size is measured.
        gradient: The dtype of what is encoded.
    """

    name: str
    compressor: str
    operation: Operation
    hyper: Mapping[str, Any] = field(default_factory=dict)
    bus_bytes_per_elem: float | None = None
    least_share: Least = NO_TARGET
    peers: tuple[Peer, ...] = ()
    shape: tuple[int, ...] = ()
    main: bool = False
    gradient: torch.dtype = torch.float32

    def build(self) -> Compressor | None:
        """Return the compressor; None while the contract table has none of its name."""
        entry = COMPRESSORS.get(self.compressor)
        return None if entry is None else entry.compressor(**self.hyper)

    def bus_bytes(self, compressor: Compressor, elems: int, store_bytes: int) -> float | None:
        """Return what must cross the memory bus in a call; None if nobody has stated it.

        A write-only stream counts `store_bytes` times: twice on a CPU, whose cache lines are read
        before they are written. A residual or an output is updated in place: read once and
        written once. A whole step also writes its result to the gradient.

        Args:
            compressor: From `build`.
            elems: Elements of the gradient.
            store_bytes: Of the device.
        """
        gradient, update = self.gradient.itemsize * elems, _FLOAT_BYTES * elems
        if self.bus_bytes_per_elem is not None:
            result = 0 if isinstance(compressor, Codec) else gradient
            return self.bus_bytes_per_elem * elems - update + gradient + result
        if not isinstance(compressor, Codec):
            return None
        payload = compressor.wire_bytes(elems)
        return {
            Operation.ENCODE: gradient + store_bytes * payload,
            Operation.FEEDBACK: gradient + 2 * update + store_bytes * payload,
            Operation.DECODE: payload + 2 * update,
            Operation.SUM: SUMMED * payload + store_bytes * update,
        }.get(self.operation)

    def prepare(self, compressor: Compressor, operands: Operands) -> Call:
        """Return a function that does the operation once more each time it is called.

        Args:
            compressor: From `build`.
            operands: Gradients of the case's dtype, and all else that it works on.

        Raises:
            KernelUnavailable: There is no such kernel for the operands' device.
        """
        if isinstance(compressor, Codec) and self.operation is not Operation.STEP:
            call = _PREPARE[self.operation](compressor, operands)
            on_cpu = operands.gradient.device.type == "cpu"
            return call if on_cpu else _answered_later(call, operands)
        return _step(compressor, self.shape or (operands.elems,), operands)


def _answered_later(call: Call, operands: Operands) -> Call:
    """As an engine calls it: what a check finds on a GPU is not waited for."""
    found = torch.zeros(1, dtype=torch.int64, device=operands.gradient.device)

    def later() -> None:
        with cuda.answers_later(lambda: as_array(found).view(np.uint64)):
            call()

    return later


def _encode(codec: Codec, operands: Operands) -> Call:
    payload, turns = operands.payload(codec.wire_bytes(operands.elems)), operands.turns()

    def call() -> int:
        x, draw = next(turns)
        return codec.encode(x, payload, draw)

    return call


def _encode_feedback(codec: Codec, operands: Operands) -> Call:
    payload, turns = operands.payload(codec.wire_bytes(operands.elems)), operands.turns()
    residual = operands.residual

    def call() -> int:
        x, draw = next(turns)
        return codec.encode_feedback(x, residual, payload, draw)

    return call


def _decode_add(codec: Codec, operands: Operands) -> Call:
    payload = operands.payload(codec.wire_bytes(operands.elems))
    x, draw = next(operands.turns())
    payload = payload[: codec.encode(x, payload, draw)]
    out = operands.out
    return lambda: codec.decode_add(payload, out, 0.5, draw)


def _decode_sum(codec: Codec, operands: Operands) -> Call:
    size, turns, out = codec.wire_bytes(operands.elems), operands.turns(), operands.out
    room = operands.payload(SUMMED * size)
    payloads = []
    for payload in room.split(size):
        x, draw = next(turns)
        payloads.append((payload[: codec.encode(x, payload, draw)], draw))
    return lambda: codec.decode_sum(payloads, out, 1 / SUMMED)


_PREPARE: dict[Operation, Callable[[Codec, Operands], Call]] = {
    Operation.ENCODE: _encode,
    Operation.FEEDBACK: _encode_feedback,
    Operation.DECODE: _decode_add,
    Operation.SUM: _decode_sum,
}


def _step(compressor: Compressor, shape: tuple[int, ...], operands: Operands) -> Call:
    """One more step of a parameter of this shape, with nobody to exchange with.

    The aggregator leaves its result in the gradient, and what that lacks in its residual. The
    next step starts from there, so their sum stays what it was.
    """
    parameter = ParameterInfo(0, "parameter", shape)
    layout = Layout(0, (Segment(parameter, 0, parameter.elems),))
    world = World(0, 1, 0, "auto", State(operands.gradient.device))
    aggregator = build_aggregator(compressor, layout, world)
    gradients = [operands.out.copy_(operands.gradient)]
    steps = itertools.count()

    def call() -> None:
        rounds = aggregator.run(gradients, StepContext(next(steps)))
        request: Request | None = next(rounds, None)
        while request is not None:
            try:
                request = rounds.send(_alone(request))
            except StopIteration:
                request = None

    return call


def _alone(request: Request) -> dict[int, torch.Tensor] | None:
    """What a world of one rank answers an aggregator."""
    return {0: request.payload} if isinstance(request, AllGather) else None
