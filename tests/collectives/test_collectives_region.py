"""A region joins tensors in their own order, wherever they lie, and brings all of it back."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from compressa.collectives.region import Region

lengths = st.lists(st.integers(1, 40), min_size=1, max_size=6)


def laid_out(sizes: list[int], order: list[int], gap: int) -> tuple[torch.Tensor, ...]:
    """Tensors of these sizes in one memory, in an order, with a gap before the last."""
    memory = torch.arange(5.0 + gap + sum(sizes))
    parts: dict[int, torch.Tensor] = {}
    offset = 5
    for i in order:
        offset += gap if i == order[-1] else 0
        parts[i] = memory[offset : offset + sizes[i]]
        offset += sizes[i]
    return tuple(parts[i] for i in range(len(sizes)))


@given(lengths, st.data(), st.sampled_from((0, 0, 3)))
def test_every_element_goes_out_in_order_and_comes_back(
    sizes: list[int], data: st.DataObject, gap: int
) -> None:
    order = data.draw(st.permutations(range(len(sizes))))
    tensors = laid_out(sizes, order, gap)
    before = [tensor.clone() for tensor in tensors]
    region = Region(sum(sizes), torch.float32, torch.device("cpu"))
    for _ in range(2):
        region.lay(tensors)
        flat = region.join()
        assert torch.equal(flat, torch.cat(before))
        flat.add_(1000)
        region.split()
        before = [values + 1000 for values in before]
        assert all(map(torch.equal, tensors, before))


def test_large_tensors_are_worked_on_where_they_are() -> None:
    sizes = [1000, 20, 20, 1000]
    for order, in_place in (([0, 1, 2, 3], True), ([0, 2, 1, 3], True), ([3, 1, 2, 0], False)):
        tensors = laid_out(sizes, order, 0)
        region = Region(sum(sizes), torch.float32, torch.device("cpu"))
        region.lay(tensors)
        flat = region.join()
        assert region.in_place == in_place
        shared = flat.untyped_storage().data_ptr() == tensors[0].untyped_storage().data_ptr()
        assert shared == in_place


def test_tensors_of_different_memories_are_copied() -> None:
    tensors = [torch.ones(4), torch.full((4,), 2.0)]
    region = Region(8, torch.float32, torch.device("cpu"))
    region.lay(tensors)
    region.join().mul_(3)
    region.split()
    assert [float(t.sum()) for t in tensors] == [12.0, 24.0]
