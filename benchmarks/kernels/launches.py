"""What small work costs on a GPU: one unit, a list of units in one launch, a bucket and back.

The host's time is that of a call until it returns. The device's is taken between two events while
the GPU has other work before it, so that it counts no time in which Python makes the next call.
Units are so small that they lie in the GPU's cache, as a gradient does that has just been made.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from compressa.kernels import KernelUnavailable, block_count
from compressa.kernels.multi_tensor import (
    BlockwiseVector,
    BlockwiseVectors,
    multi_tensor_quantize,
)

from benchmarks.kernels.cases import Case, Operation
from benchmarks.kernels.device import device_s
from benchmarks.kernels.operands import Operands
from benchmarks.kernels.records import Row, case_at
from benchmarks.kernels.run import Bench
from benchmarks.timing import Call, Clock, Samples
from compressa.arrays import as_array
from compressa.codecs import Codec, Int4, Int8

UNIT_ELEMS, UNITS = 1 << 18, 64  # of 1 MB
BUCKET_ELEMS = 25_000_000  # 100 MB

_HOST_CALLS = 200  # far fewer than a stream holds: then a call would wait
_LOOPS = 20

Clocked = Literal["host", "device"]
Prepare = Callable[[Int8 | Int4, Operands], Call]


@dataclass(frozen=True)
class LaunchCase:
    """One row.

    Attributes:
        name: `--case` matches it.
        codec: Of the call.
        prepare: Makes the call.
        elems: Of the call, all together.
        clock: Whose time counts.
        most_us: The target: what it may take.
        least_rate: The target: what share of the large-size rate it should reach.
    """

    name: str
    codec: Int8 | Int4
    prepare: Prepare
    elems: int
    clock: Clocked = "device"
    most_us: float | None = None
    least_rate: float | None = None

    def met(self, row: Row) -> bool:
        """Return whether a row meets the target."""
        if self.most_us is not None:
            return row.median <= self.most_us
        return row.speedup is not None and row.speedup >= (self.least_rate or 0)

    def target(self, row: Row) -> str:
        """Say what is wanted, and what was reached of it."""
        if self.most_us is not None:
            return f"at most {self.most_us:.0f}"
        reached = "-" if row.speedup is None else f"{row.speedup:.2f}"
        return f"{reached} of {self.least_rate:.2f} of the rate of {row.peer}"


def encode_unit(codec: Codec, operands: Operands) -> Call:
    """Return a call that encodes the operands' gradient with residual, as one unit."""
    feedback = Case(name="", compressor=codec.name, operation=Operation.FEEDBACK)
    return feedback.prepare(codec, operands)


def encode_units(codec: Int8 | Int4, operands: Operands) -> Call:
    """Return a call that encodes the operands' gradient with residual, as a list of `UNITS`."""
    batch = as_list(codec, operands)
    return lambda: multi_tensor_quantize(batch)


def there_and_back(codec: Codec, operands: Operands) -> Call:
    """Return a call that encodes a bucket with residual, decodes it, and adds that to another."""
    encode = encode_unit(codec, operands)
    payload, out = operands.payload(codec.wire_bytes(operands.elems)), operands.out
    _, draw = next(operands.turns())

    def call() -> None:
        encode()
        codec.decode_add(payload, out, 0.5, draw)

    return call


def as_list(codec: Int8 | Int4, operands: Operands) -> BlockwiseVectors:
    """Return the gradient, cut into units whose payloads lie one after the other."""
    elems = operands.elems // UNITS
    size, head = codec.wire_bytes(elems), 4 * block_count(elems, codec.block)
    payload = operands.payload(UNITS * size)
    vectors = []
    for unit in range(UNITS):
        own = as_array(payload[unit * size : (unit + 1) * size])
        part = slice(unit * elems, (unit + 1) * elems)
        x, residual = as_array(operands.gradient[part]), as_array(operands.residual[part])
        scales = own[:head].view(np.float32)
        vectors.append(BlockwiseVector(x, own[head:], scales, residual=residual))
    return BlockwiseVectors(vectors, form=codec.form)


def _of(codec: Int8 | Int4) -> tuple[LaunchCase, ...]:
    unit, all_elems = f"{codec.name} with residual, one unit", UNITS * UNIT_ELEMS
    many = f"{codec.name} with residual, {UNITS} units in one launch"
    return (
        LaunchCase(f"{unit}: host", codec, encode_unit, UNIT_ELEMS, "host", most_us=15.0),
        LaunchCase(f"{unit}: device", codec, encode_unit, UNIT_ELEMS, most_us=10.0),
        LaunchCase(many, codec, encode_units, all_elems, least_rate=0.5),
    )


_BUCKET = "int8 with residual, a bucket of 100 MB and back"
LAUNCHES = (
    *_of(Int8()),
    *_of(Int4()),
    LaunchCase(_BUCKET, Int8(), there_and_back, BUCKET_ELEMS, most_us=250.0),
)
"""Every row; they are measured on a GPU only."""


def run(bench: Bench, cases: Sequence[LaunchCase]) -> Iterator[Row]:
    """Measure all on the bench's device; yield the rows, which the bench keeps.

    What has no kernel there is named among the bench's `unavailable`.

    Raises:
        RuntimeError: A call waits for the GPU; see `device_s`.
    """
    if cases:
        large = Operands(bench.device.default_elems[-1], bench.device)
        with bench.hired():
            for case in cases:
                try:
                    yield _measured(bench, case, large)
                except KernelUnavailable:
                    bench.unavailable.add(case.name)


def _measured(bench: Bench, case: LaunchCase, large: Operands) -> Row:
    call = case.prepare(case.codec, Operands(case.elems, bench.device))
    if case.clock == "host":
        samples = host_times(call, torch.cuda.synchronize)
    else:
        samples = _device_times(call, large, bench.repeats)
    row = bench.row("kernels-launch", case_at(case.name, case.elems), samples, None)
    if case.least_rate is not None:
        whole = _device_times(encode_unit(case.codec, large), large, bench.repeats)
        as_long_s = whole.median * case.elems / large.elems
        peer = {"peer": f"{large.elems:,} elements", "peer_median": 1e6 * as_long_s}
        row = row.model_copy(update=peer)
    bench.rows.append(row)
    return row


def host_times(call: Call, wait: Call, clock: Clock = time.perf_counter) -> Samples:
    """Return the seconds until a call returns, of many in a row.

    Args:
        call: Enqueues work.
        wait: Waits until all is done.
        clock: Gives seconds.
    """
    for _ in range(_LOOPS):
        call()
    wait()
    seconds = []
    for _ in range(_HOST_CALLS):
        begin_s = clock()
        call()
        seconds.append(clock() - begin_s)
    wait()
    return Samples(tuple(seconds))


def _device_times(call: Call, large: Operands, repeats: int) -> Samples:
    device_s(call, _LOOPS, large.stream)
    return Samples(tuple(device_s(call, _LOOPS, large.stream) for _ in range(repeats)))
