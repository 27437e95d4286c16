"""Who holds other bits than most follows from the ranks' checksums."""

from __future__ import annotations

from collections import Counter

import torch
from hypothesis import given
from hypothesis import strategies as st

from compressa.engine.replicas.integrity import _bits, differences

VALUES = st.lists(st.integers(0, 3), min_size=1, max_size=7)


@given(st.dictionaries(st.sampled_from("abc"), VALUES.filter(lambda v: len(v) == 5), min_size=1))
def test_the_minority_is_whoever_does_not_hold_what_more_than_half_hold(
    held: dict[str, list[int]],
) -> None:
    found = {d.name: d for d in differences([{n: v[r] for n, v in held.items()} for r in range(5)])}
    for name, values in held.items():
        value, count = Counter(values).most_common(1)[0]
        if count == 5:
            assert name not in found
            continue
        most = tuple(r for r, own in enumerate(values) if own == value) if count > 2 else ()
        assert found[name].majority == most
        assert set(found[name].ranks) == set(range(5)) - set(most)


def test_two_ranks_have_no_majority() -> None:
    (found,) = differences([{"w": 1, "v": 3}, {"w": 2, "v": 3}])
    assert (found.name, found.ranks, found.majority) == ("w", (0, 1), ())


def test_a_tensor_that_a_rank_lacks_is_a_difference_and_cannot_be_repaired_from_none() -> None:
    (found,) = differences([{"w": 1}, {}, {"w": 1}])
    assert found.ranks == (1,)
    (found,) = differences([{"w": 1}, {}, {}])
    assert found.majority == ()


def test_the_bits_are_those_of_the_values_however_they_lie_in_memory() -> None:
    values = torch.randn(3, 4, 5, 6, dtype=torch.complex64)
    bits = _bits(values).clone()
    assert torch.equal(_bits(values.to(memory_format=torch.channels_last)), bits)
    assert torch.equal(_bits(values.conj().clone().conj()), bits)
    for odd in (torch.tensor(True), torch.zeros(0), torch.ones(3).to(torch.float8_e4m3fn)):
        assert _bits(odd).numel() == odd.nbytes
