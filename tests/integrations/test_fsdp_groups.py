"""Where FSDP2 lays parameters: every element has one owner, the one that torch's chunks give it."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributed.fsdp import FSDPModule

from compressa.errors import BackendUnavailable
from compressa.integrations.fsdp.groups import lay_out, sharding_of, slice_elems
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
    places = lay_out(infos, ranks)
    values = [torch.arange(1.0, 1 + math.prod(shape)).view(shape) for shape in SHAPES]
    flat = torch.zeros(ranks * slice_elems(places))
    torch._chunk_cat(values, 0, ranks, out=flat.view(ranks, -1))  # what FSDP2 calls
    for place, value in zip(places, values, strict=True):
        owned = []
        for rank in range(ranks):
            part = place.view(flat, rank, rank * slice_elems(places))
            assert part.numel() == math.prod(place.local_shape(rank))
            segment = place.of(rank)
            torch.testing.assert_close(part, value.flatten()[segment.start : segment.stop])
            owned.append(part)
        torch.testing.assert_close(torch.cat(owned), value.flatten())
