"""A unit's gradients: read and written where they lie, in any order of memory; looked at once."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import cache
from unittest import mock

import pytest
import torch
from emulated_streams import Stream
from emulated_torch import as_cuda, emulated_torch, on_cpu, on_gpu

from compressa.aggregators.base import State, World
from compressa.codecs import NoCompression
from compressa.engine.units import unit_runtime
from compressa.engine.units.unit_runtime import UnitRuntime, all_delivered_finite
from compressa.engine.units.units import Unit
from compressa.parameters import Layout, ParameterInfo, Segment
from compressa.testing.allocation import allocations
from compressa.testing.inputs import generator
from compressa.testing.memory import same_bits

DEVICES = {"cpu": torch.clone, "gpu": on_gpu}
LAYOUTS: dict[str, Callable[[], torch.Tensor]] = {
    "channels_last": lambda: numbered(4, 6, 5, 3).to(memory_format=torch.channels_last),
    "one channel less": lambda: numbered(2, 5, 4, 4).to(memory_format=torch.channels_last)[:, 1:],
    "channels_last_3d": lambda: numbered(3, 4, 2, 3, 2).to(memory_format=torch.channels_last_3d),
    "transposed": lambda: numbered(13, 7).T,
    "every other": lambda: numbered(60)[::2],
    "rows of one": lambda: numbered(1, 9, 8).transpose(1, 2),
}


def numbered(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=generator(math.prod(shape)))


def runtime(*segments: Segment) -> UnitRuntime:
    world = World(0, 1, 0, "auto", State())
    return UnitRuntime(Unit(Layout(0, segments), NoCompression()), world)


def cut(x: torch.Tensor, seed: int) -> list[Segment]:
    """Cut a parameter like a tensor at a few indices, most of them in the middle of a row."""
    info = ParameterInfo(0, "w", tuple(x.shape), x.dtype)
    indices = torch.randint(1, x.numel(), (4,), generator=generator(seed)).tolist()
    edges = sorted({0, *indices, indices[0] - 1, x.numel()})
    return [Segment(info, low, high) for low, high in itertools.pairwise(edges)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_lies_in_another_order_is_read_and_written_in_that_of_rows(
    layout: str, device: str
) -> None:
    for seed in range(5):
        original = LAYOUTS[layout]()
        segments, flat = cut(original, seed), original.reshape(-1).clone()
        with emulated_torch():
            strided = torch.empty_strided(original.shape, original.stride()).copy_(original)
            gradient = as_cuda(strided) if device == "gpu" else strided
            for segment in segments:
                unit = runtime(segment)
                with mock.patch.object(torch, "arange", side_effect=AssertionError("an index")):
                    (values,) = unit.collect({"w": gradient})
                    twice = values.clone()
                    values.mul_(2.0)
                    unit.deliver({"w": gradient}, check_finite=False)
                if device == "gpu":
                    torch.cuda.synchronize()
                    twice = on_cpu(twice)
                assert same_bits(twice, flat[segment.start : segment.stop])
                flat[segment.start : segment.stop] *= 2.0
                assert same_bits(strided.contiguous().view(-1), flat)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_part_is_few_views(layout: str) -> None:
    x = LAYOUTS[layout]()
    for start in range(x.numel()):
        for stop in range(start + 1, x.numel() + 1, 5):
            boxes = list(unit_runtime._boxes(x, start, stop))
            assert len(boxes) <= 2 * x.dim() - 1
            assert [low for _, low, _ in boxes[1:]] == [high for *_, high in boxes[:-1]]
            assert boxes[-1][2] == stop - start


def test_a_part_takes_memory_for_itself_only() -> None:
    x = numbered(64, 32, 16, 16).to(memory_format=torch.channels_last)
    segment = Segment(ParameterInfo(0, "w", tuple(x.shape), x.dtype), 1000, 30_000)
    unit = runtime(segment)
    with allocations() as seen:
        unit.collect({"w": x})
        unit.deliver({"w": x}, check_finite=False)
    assert seen.total_bytes <= 4 * segment.elems + (1 << 15), str(seen)


@cache
def sources(dtype: torch.dtype) -> list[torch.Tensor]:
    sizes = (1, 5, 4097, 64, 33)
    return [torch.full((size,), torch.finfo(dtype).max, dtype=dtype) for size in sizes]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str
)
def test_a_nan_or_an_infinity_is_seen_wherever_it_is(dtype: torch.dtype, device: str) -> None:
    infos = [ParameterInfo(i, f"p{i}", (x.numel(),), dtype) for i, x in enumerate(sources(dtype))]
    with emulated_torch():
        unit = runtime(*(Segment(info, 0, info.elems) for info in infos))
        faults = [(i, j) for i, x in enumerate(sources(dtype)) for j in {0, x.numel() // 2, -1}]
        for value in (torch.nan, -torch.nan, torch.inf, -torch.inf):
            for i, j in [(0, None), *faults]:
                host = [x.clone() for x in sources(dtype)]
                if j is not None:
                    host[i][j] = value
                gradients = {f"p{k}": DEVICES[device](x) for k, x in enumerate(host)}
                unit.collect(gradients)
                unit.deliver(gradients, check_finite=True)
                assert unit.finite is (j is None)


def test_a_gpu_is_waited_for_once_for_all_units() -> None:
    dtypes = (torch.float16, torch.float64, torch.float32, torch.bfloat16)
    units = [runtime(Segment(ParameterInfo(0, "w", (70,), dtype), 0, 70)) for dtype in dtypes]
    with emulated_torch():
        for spoilt in (None, 0, 3):
            for i, (unit, dtype) in enumerate(zip(units, dtypes, strict=True)):
                x = torch.full((70,), torch.finfo(dtype).max, dtype=dtype)
                x[-1] *= 2.0 if i == spoilt else 1.0
                gradient = {"w": on_gpu(x)}
                with mock.patch.object(Stream, "synchronize", side_effect=AssertionError):
                    unit.collect(gradient)
                    unit.deliver(gradient, check_finite=True)
            reach = Stream.synchronize
            with mock.patch.object(Stream, "synchronize", autospec=True, side_effect=reach) as wait:
                assert all_delivered_finite(units) is (spoilt is None)
            wait.assert_called_once()
    assert all_delivered_finite([])
