"""Broadcast buckets: tensors of any kind as bytes, cut alike wherever they lie; and checksums."""

from __future__ import annotations

from unittest import mock

import compressa.kernels as kernels
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from compressa.engine.replicas import broadcast_buckets as buckets_module
from compressa.engine.replicas.broadcast_buckets import BroadcastBucket, cut_into_buckets
from compressa.engine.replicas.checksum import checksum
from compressa.testing.inputs import generator

CPU = torch.device("cpu")
DTYPES = [torch.float32, torch.float16, torch.int8, torch.bool, torch.complex64, torch.float64]
SHAPES = st.lists(st.integers(0, 9), max_size=3).map(tuple)


def made(
    shape: tuple[int, ...], dtype: torch.dtype, *, transposed: bool, seed: int
) -> torch.Tensor:
    values = torch.randint(2, shape, generator=generator(seed)).to(dtype)
    return values.mT.contiguous().mT if transposed and values.ndim > 1 else values


@given(
    kinds=st.lists(st.tuples(SHAPES, st.sampled_from(DTYPES), st.booleans()), max_size=6),
    most_bytes=st.sampled_from([16, 64, 1000]),
    small_bytes=st.sampled_from([8, 100]),
)
def test_what_is_cut_alike_is_held_alike(
    kinds: list[tuple[tuple[int, ...], torch.dtype, bool]], most_bytes: int, small_bytes: int
) -> None:
    held, lacking = (
        {
            str(i): made(shape, dtype, transposed=odd != flip, seed=seed + i)
            for i, (shape, dtype, odd) in enumerate(kinds)
        }
        for seed, flip in ((0, False), (100, True))  # rows here are columns in memory there
    )
    with mock.patch.object(buckets_module, "SMALL_BYTES", small_bytes):
        given_, taken = (cut_into_buckets(tensors, most_bytes) for tensors in (held, lacking))
    assert [p.size_bytes for p in given_] == [p.size_bytes for p in taken]
    for source, target in zip(given_, taken, strict=True):
        memory = target.open(CPU, fill=False)
        memory.copy_(source.open(CPU, fill=True))
        target.close(memory)
        assert memory.numel() == source.size_bytes <= max(most_bytes, 16)
    assert all(torch.equal(lacking[name], held[name]) for name in held)


def test_a_contiguous_tensor_travels_from_where_it_lies() -> None:
    values = torch.zeros(30, 10)
    (bucket,) = [BroadcastBucket([("w", values)])]
    assert bucket.open(CPU, fill=True).data_ptr() == values.data_ptr()
    assert BroadcastBucket([("w", values.t())]).open(CPU, fill=True).data_ptr() != values.data_ptr()
    assert BroadcastBucket([("w", torch.zeros(3, dtype=torch.complex64).conj())]).size_bytes == 24


def test_a_conjugate_travels_as_what_it_is() -> None:
    values = torch.tensor([1 + 2j, 3 - 4j])
    memory = BroadcastBucket([("c", values.conj())]).open(CPU, fill=True)
    assert torch.equal(memory.view(torch.complex64), values.conj().resolve_conj())


@given(size=st.integers(0, 2000), at=st.integers(0, 1999), bit=st.integers(0, 7))
def test_the_checksum_sees_each_bit_and_its_index(size: int, at: int, bit: int) -> None:
    data = torch.randint(256, (size,), dtype=torch.uint8, generator=generator(size))
    assert checksum(data) == checksum(data.clone())
    if at < size:
        other = data.clone()
        other[at] ^= 1 << bit
        assert checksum(other) != checksum(data)
    if not torch.equal(data, data.flip(0)):
        assert checksum(data.flip(0)) != checksum(data)


@pytest.mark.parametrize("size", [1 << 19, (1 << 19) + 1, 3 << 19])
def test_the_checksum_of_long_memory_has_all_of_it(size: int) -> None:
    data = torch.zeros(size, dtype=torch.uint8)
    seen = {checksum(data)}
    for index in (0, (1 << 19) - 1, size - 1):
        other = data.clone()
        other[index] = 1
        seen.add(checksum(other))
    assert len(seen) == len({0, (1 << 19) - 1, size - 1}) + 1


def test_the_checksum_of_memory_is_that_of_the_kernels() -> None:
    data = torch.randint(256, (1001,), dtype=torch.uint8, generator=generator(0))
    assert checksum(data) == kernels.checksum(data.numpy())
