"""Where FSDP lays parameters: every element has one owner, the one that torch's chunks give it."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._flat_param import FlatParamHandle

from compressa.errors import BackendUnavailable
from compressa.integrations.fsdp.groups import sharding_of
from compressa.integrations.fsdp.sliced import SlicedFlat, lay_out, slice_elems
from compressa.parameters import ParameterInfo


def test_another_torch_is_refused_with_the_one_that_will_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(FSDPModule, "set_reduce_scatter_unused_params")
    with pytest.raises(BackendUnavailable, match=r"torch 2\.13 or later"):
        sharding_of(torch.nn.Linear(2, 2))


SHAPES = [(37, 18), (45,), (3, 7, 5), (1,), (256, 2), (4, 1)]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7, 64])
def test_slices_are_those_that_torch_cuts_and_pads(ranks: int) -> None:
    infos = [ParameterInfo(i, str(i), shape) for i, shape in enumerate(SHAPES)]
    sliced = lay_out(infos, ranks)
    values = [torch.arange(1.0, 1 + math.prod(shape)).view(shape) for shape in SHAPES]
    flat = torch.zeros(ranks * slice_elems(sliced))
    torch._chunk_cat(values, 0, ranks, out=flat.view(ranks, -1))  # what FSDP2 calls
    for one, value in zip(sliced, values, strict=True):
        owned = []
        for rank in range(ranks):
            part = one.view(flat, rank, rank * slice_elems(sliced))
            assert part.numel() == math.prod(one.local_shape(rank))
            segment = one.of(rank)
            torch.testing.assert_close(part, value.flatten()[segment.start : segment.stop])
            owned.append(part)
        torch.testing.assert_close(torch.cat(owned), value.flatten())


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7, 64])
@pytest.mark.parametrize("gap", [0, 5])
def test_flat_slices_are_those_that_torch_cuts_and_pads(ranks: int, gap: int) -> None:
    values = [torch.arange(1.0, 1 + math.prod(shape)) for shape in SHAPES]
    lying = torch.cat([torch.nn.functional.pad(value, (0, gap)) for value in values])
    shards = [FlatParamHandle._get_shard(lying, rank, ranks)[0] for rank in range(ranks)]
    each, first = shards[0].numel(), 0
    sliced = []
    for i, (shape, value) in enumerate(zip(SHAPES, values, strict=True)):
        sliced.append(SlicedFlat(ParameterInfo(i, str(i), shape), first, each))
        first += value.numel() + gap
    assert slice_elems(sliced) == each
    flat = torch.cat(shards)
    for one, value in zip(sliced, values, strict=True):
        segments = [one.of(rank) for rank in range(ranks)]
        assert max(segment.elems for segment in segments) <= one.elems
        for rank, segment in enumerate(segments):
            own = value[segment.start : segment.stop]
            assert one.local_shape(rank) == own.shape
            torch.testing.assert_close(one.view(flat, rank, rank * each), own)
            torch.testing.assert_close(one.view(shards[rank], rank), own)
        assert sum(segment.elems for segment in segments) == value.numel()
