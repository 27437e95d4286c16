"""A unit of many small parameters, on a CPU or an emulated GPU, and what it leaves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
from compressa.kernels import cuda
from emulated_streams import DEVICE, Stream
from emulated_torch import StreamedEmulated, emulated_torch, on_cpu, on_gpu

from compressa.aggregators.base import CPU, State, StepContext, World, whole_scopes
from compressa.aggregators.feedback import FeedbackRule
from compressa.aggregators.multi_tensor import MultiTensor
from compressa.aggregators.scopes import ScopePayload
from compressa.arrays import as_array
from compressa.codecs import Codec
from compressa.parameters import Layout, ParameterInfo, Segment
from compressa.testing.inputs import generator
from compressa.testing.memory import same_bits

SIZES = [1, 2, 40, 33, 700, 1, 96, 64, 5, 1031]
MANY = 7 * SIZES  # more than a launch takes
HEADER = "write_prefix"  # of each payload
RULE = FeedbackRule()


@contextmanager
def counted_launches() -> Iterator[Counter[str]]:
    """Give how often each kernel is launched."""
    counts: Counter[str] = Counter()
    launch = StreamedEmulated.launch

    def counting(self: Any, source: str, name: str, blocks: int, arguments: Any) -> None:
        counts[name] += 1
        launch(self, source, name, blocks, arguments)

    with mock.patch.object(StreamedEmulated, "launch", counting):
        yield counts


@contextmanager
def counted_waits() -> Iterator[list[None]]:
    """Give a list with an element for each time that the host waits for a stream."""
    waits: list[None] = []
    synchronize = Stream.synchronize

    def counting(self: Stream) -> None:
        waits.append(None)
        synchronize(self)

    with mock.patch.object(Stream, "synchronize", counting):
        yield waits


def layout_of(sizes: Sequence[int], dtype: torch.dtype = torch.float32) -> Layout:
    infos = [ParameterInfo(i, f"p{i}", (size,), dtype) for i, size in enumerate(sizes)]
    return Layout(3, tuple(Segment(info, 0, info.elems) for info in infos))


def gradients_of(sizes: Sequence[int], seed: int, dtype: torch.dtype) -> list[torch.Tensor]:
    random = generator(seed)
    return [torch.randn(size, generator=random).to(dtype) for size in sizes]


class Unit:
    """One rank's unit, which encodes and takes the mean of what several ranks would send.

    Attributes:
        state: Its state.
        scopes: What is tested.
    """

    def __init__(
        self,
        codec: Codec,
        sizes: Sequence[int],
        device: torch.device = DEVICE,
        rule: FeedbackRule | None = None,
        ranks: int = 2,
        *,
        multi_tensor: bool | None = None,
    ) -> None:
        self.state = State(device)
        world = World(0, ranks, 11, "all_gather", self.state)
        scopes = whole_scopes(layout_of(sizes))
        used = device != CPU if multi_tensor is None else multi_tensor
        known = MultiTensor if used else lambda *args: None
        with mock.patch("compressa.aggregators.scopes.MultiTensor", known):
            self.scopes = ScopePayload(codec, 3, scopes, world, feedback=rule)
        self._payloads = [self.scopes.buffer() for _ in range(ranks)]

    def step(self, gradients: Sequence[torch.Tensor], context: StepContext) -> torch.Tensor:
        """Encode to each rank's payload, average, and return the last payload."""
        sent = [self.scopes.encode(gradients, context, payload) for payload in self._payloads]
        self.scopes.average(sent, gradients, context)
        return sent[-1]

    def all_there(self, gradients: Sequence[torch.Tensor], *more: torch.Tensor) -> list[Any]:
        """What is there after a step, as a CPU has it."""
        found = [*gradients, *more, *self.state.vectors.values()]
        if self.state.device == CPU:
            return [x.clone() for x in found]
        torch.cuda.synchronize()
        return [on_cpu(x) for x in found]


def same(ours: Sequence[torch.Tensor], due: Sequence[torch.Tensor]) -> bool:
    return all(same_bits(a, b) for a, b in zip(ours, due, strict=True))


def steps_of(
    codec: Codec,
    device: torch.device,
    rule: FeedbackRule | None,
    dtype: torch.dtype,
    *,
    multi_tensor: bool | None = None,
    sizes: Sequence[int] = tuple(MANY),
) -> list[list[Any]]:
    """What each of three steps leaves; the gradients of the last lie elsewhere."""
    unit, found = Unit(codec, sizes, device, rule, multi_tensor=multi_tensor), []
    bucket: list[torch.Tensor] = []
    for step in range(3):
        new = gradients_of(sizes, step, dtype)
        if step == 1:
            for old, values in zip(bucket, new, strict=True):
                old.copy_(values)
        else:
            bucket = new if device == CPU else [on_gpu(x) for x in new]
        payload = unit.step(bucket, StepContext(step, loss_scale=8.0))
        found.append(unit.all_there(bucket, payload))
    return found


class Costs(NamedTuple):
    """Launches and waits of an encode, waits of a check, and both of an average over two ranks."""

    encode: int
    average: int
    encode_waits: int = 0
    check_waits: int = 0
    average_waits: int = 0


def costs_of(codec: Codec, sizes: Sequence[int]) -> Costs:
    """What each takes when that has been done before."""
    with emulated_torch(), mock.patch.object(StreamedEmulated, "processors", 132):
        unit, step = Unit(codec, sizes, rule=RULE, ranks=2), StepContext(0)
        gradients = [on_gpu(x) for x in gradients_of(sizes, 0, torch.float32)]
        unit.step(gradients, step)
        payloads, costs = [unit.scopes.buffer() for _ in range(2)], list[int]()
        sent = [unit.scopes.encode(gradients, step, payload) for payload in payloads]
        unit.scopes.average(sent, gradients, step)
        with counted_launches() as launched, cuda.answers_later(number), counted_waits() as waits:
            sent[0] = unit.scopes.encode(gradients, step, payloads[0])
            costs += [launched.total() - 1, len(waits)]  # without the header
            waits.clear()
            unit.scopes.check(sent[1], step, 1)
            costs.append(len(waits))
            waits.clear()
            launched.clear()
            unit.scopes.average(sent, gradients, step)
            costs += [launched.total(), len(waits)]
    encode, encode_waits, check_waits, average, average_waits = costs
    return Costs(encode, average, encode_waits, check_waits, average_waits)


def number() -> Any:
    """A cleared number on the GPU, which checks set."""
    return as_array(torch.zeros(1, dtype=torch.int64, device=DEVICE)).view(np.uint64)
