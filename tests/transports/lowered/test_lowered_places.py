"""Values that lie in several places are summed there, with the bits of one vector."""

from __future__ import annotations

import time
from functools import partial

import pytest
import torch
from _lowered import CHUNK_BYTES, End, ends, side_by_side
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_collectives_algorithms import same_bits, sum_all

from compressa.collectives.algorithms import ALGORITHMS, segmented
from compressa.collectives.dense import divide
from compressa.collectives.region import Region
from compressa.testing.inputs import generator
from compressa.transports.base import Key
from compressa.transports.loopback import Loopback
from compressa.transports.lowered import AVAILABLE

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="compiled sums are for 64-bit Linux")

CHUNK_ELEMS = CHUNK_BYTES // 4
lengths = st.lists(
    st.sampled_from([1, 2, 7, 64, CHUNK_ELEMS - 1, CHUNK_ELEMS, 3 * CHUNK_ELEMS + 5]),
    min_size=1,
    max_size=7,
)


def pieces(values: torch.Tensor, sizes: list[int], order: list[int]) -> list[torch.Tensor]:
    """Copies of parts of a vector, which lie in memory in another order, with gaps between."""
    memory = torch.full((values.numel() + len(sizes),), float("nan"), dtype=values.dtype)
    made: dict[int, torch.Tensor] = {}
    offset = 0
    for number in order:
        made[number] = memory[offset : offset + sizes[number]]
        offset += sizes[number] + number % 2  # some follow each other, some do not
    for part, own in zip(torch.split(values, sizes), sorted(made.items()), strict=True):
        own[1].copy_(part)
    return [made[number] for number in range(len(sizes))]


def region_of(tensors: list[torch.Tensor]) -> Region:
    region = Region(sum(t.numel() for t in tensors), tensors[0].dtype, torch.device("cpu"))
    region.lay(tensors)
    return region


@pytest.mark.parametrize("name", ALGORITHMS)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_pieces_have_the_bits_of_one_vector(name: str, data: st.DataObject) -> None:
    size = data.draw(st.sampled_from([2, 3, 4]), "ranks")
    stripes = data.draw(st.sampled_from([1, 2]), "stripes")
    secret = data.draw(st.sampled_from([None, b"of all ranks"]), "secret")
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64]), "dtype")
    sizes = data.draw(lengths, "sizes")
    late_s = data.draw(st.sampled_from([0.0, 0.02]), "late")  # what comes early is kept aside
    random = generator(data.draw(st.integers(0, 99)))
    values = [torch.randn(sum(sizes), generator=random).to(dtype) for _ in range(size)]
    # Each rank has its own places.
    orders = [data.draw(st.permutations(range(len(sizes)))) for _ in range(size)]
    laid = [pieces(*each) for each in zip(values, [sizes] * size, orders, strict=True)]
    due = [value.clone() for value in values]
    for value in due:
        divide(value, size)
    sum_all(Loopback(size), segmented(ALGORITHMS[name], 1), due)

    def run(end: End) -> None:
        program = end.program(name, values[end.rank])
        time.sleep(late_s * end.rank)
        end.sum(program, region_of(laid[end.rank]), Key(0, 0, 0), size)

    with ends(size, stripes, secret=secret) as loops:
        side_by_side([partial(run, end) for end in loops])
        assert not any(end.failures for end in loops)
    assert same_bits([due[0], *(torch.cat(tensors) for tensors in laid)])


@given(sizes=lengths, seed=st.integers(0, 99))
@example(sizes=[5], seed=0)
def test_a_table_names_each_piece_once(sizes: list[int], seed: int) -> None:
    order = torch.randperm(len(sizes), generator=generator(seed)).tolist()
    tensors = pieces(torch.arange(float(sum(sizes))), sizes, order)
    region = region_of(tensors)
    base, at = region.where()
    if not at:
        assert base == tensors[0].data_ptr()
        behind = [t.data_ptr() + t.nbytes for t in tensors]
        assert [t.data_ptr() for t in tensors[1:]] == behind[:-1]
        return
    count, *places, end = region._places.tolist()
    assert (base, end, len(places)) == (0, 4 * sum(sizes), 2 * count)
    begins, addresses = places[::2], places[1::2]
    offset = 0
    for tensor in tensors:
        piece = max(i for i, begin in enumerate(begins) if begin <= offset)
        assert addresses[piece] + offset - begins[piece] == tensor.data_ptr()
        offset += tensor.nbytes
