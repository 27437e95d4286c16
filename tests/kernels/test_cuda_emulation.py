"""The CPU that stands in for a GPU notices what would go wrong on one."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from emulated_cuda import run_text

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")

TEXT = """
KERNEL(number, 64, (int* out)) { out[blockIdx.x * blockDim.x + threadIdx.x] = threadIdx.x; }

KERNEL(reverse, 64, (int* out)) {
    __shared__ int all[64];
    all[threadIdx.x] = threadIdx.x;
    __syncthreads();
    out[threadIdx.x] = all[63 - threadIdx.x];
}

KERNEL(reverse_without_a_barrier, 64, (int* out)) {
    __shared__ int all[64];
    all[threadIdx.x] = threadIdx.x;
    out[threadIdx.x] = all[63 - threadIdx.x];
}

KERNEL(sum_of_a_warp, 64, (int* out)) {
    int sum = threadIdx.x;
    for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    out[threadIdx.x] = sum;
}

KERNEL(neighbours, 64, (int* out)) {
    int lane = threadIdx.x % 32;
    int up = __shfl_up_sync(~0u, lane, 1), down = __shfl_down_sync(~0u, lane, 1);
    int first = __shfl_sync(~0u, lane, 3, 8);
    unsigned odd = __ballot_sync(~0u, lane % 2);
    out[threadIdx.x] = up + 100 * down + 10000 * first + (odd == 0xAAAAAAAAu ? 1000000 : 0);
}

KERNEL(half_a_warp_waits, 64, (int* out)) {
    if (threadIdx.x < 16) out[threadIdx.x] = __shfl_sync(~0u, 1, 0);
}

KERNEL(a_barrier_for_some, 64, (int* out)) {
    if (threadIdx.x < 40) __syncthreads();
    out[threadIdx.x] = 1;
}

KERNEL(a_lane_outside_the_mask, 64, (int* out)) {
    if (threadIdx.x % 32 < 16) out[threadIdx.x] = __shfl_sync(0xFFFFu, 1, 20);
}

KERNEL(count_all, 64, (int* out)) { atomicAdd(out, 1); }

KERNEL(two_at_once, 64, (unsigned* out)) {
    uint2* pair = reinterpret_cast<uint2*>(out);
    if (threadIdx.x == 3) *pair = make_uint2(1, 2);
    __syncthreads();
}

KERNEL(four_at_once, 64, (const float* in, float* out)) {
    float4 four = *reinterpret_cast<const float4*>(in);
    out[0] = four.w;
}

KERNEL(last_block, 64, (int* out)) { *out = blockIdx.x; }
"""


def out_of(name: str, size: int = 64, blocks: int = 1, seed: int = 0) -> np.ndarray:
    out = np.zeros(size, np.int32)
    run_text(TEXT, name, blocks, (out,), seed)
    return out


def test_threads_and_blocks_are_numbered() -> None:
    assert out_of("number", 128, blocks=2).tolist() == [*range(64), *range(64)]


def test_barriers_wait_for_all() -> None:
    for seed in range(20):
        assert out_of("reverse", seed=seed).tolist() == list(range(63, -1, -1))


def test_what_a_barrier_is_missing_for_shows() -> None:
    assert any(
        (out_of("reverse_without_a_barrier", seed=s) != range(63, -1, -1)).any() for s in (0, 1)
    )


def test_lanes_exchange() -> None:
    assert set(out_of("sum_of_a_warp")[:32]) == {496}
    assert set(out_of("sum_of_a_warp")[32:]) == {1520}
    due = [
        max(lane - 1, 0) + 100 * min(lane + 1, 31) + 10000 * (lane // 8 * 8 + 3) + 1000000
        for lane in range(32)
    ]
    assert out_of("neighbours").tolist() == 2 * due


def test_atomics_and_the_order_of_blocks() -> None:
    assert out_of("count_all", 1, blocks=5) == [320]
    assert len({int(out_of("last_block", 1, blocks=9, seed=seed)[0]) for seed in range(9)}) > 1


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("half_a_warp_waits", "wait for lanes of their warp that never come, in __shfl_sync"),
        ("a_barrier_for_some", "a barrier is waited at after threads 40, 41, .* have ended"),
        ("a_lane_outside_the_mask", "reads a lane that takes no part"),
    ],
)
def test_what_would_hang_or_read_rubbish_is_refused(name: str, reason: str) -> None:
    with pytest.raises(RuntimeError, match=f"{name}: .*{reason}"):
        out_of(name)
    assert out_of("reverse").tolist() == list(range(63, -1, -1))


def test_wide_accesses_at_odd_addresses_are_refused() -> None:
    words, floats = np.zeros(8, np.uint32), np.arange(8, dtype=np.float32)
    run_text(TEXT, "two_at_once", 1, (words[2:],))
    assert words.tolist() == [0, 0, 1, 2, 0, 0, 0, 0]
    # The barrier that the others wait at in vain is not what is wrong.
    with pytest.raises(RuntimeError, match=r"\.cu:\d+: .* no multiple of 8: if .*make_uint2\(1, 2"):
        run_text(TEXT, "two_at_once", 1, (words[1:],))
    found = np.zeros(1, np.float32)
    run_text(TEXT, "four_at_once", 1, (floats[4:], found))
    assert found == [7]
    with pytest.raises(RuntimeError, match=r"no multiple of 16: float4 four = "):
        run_text(TEXT, "four_at_once", 1, (floats[2:], found))


def test_sources_may_have_kernels_of_one_name() -> None:
    other = "KERNEL(number, 32, (float* out)) { out[threadIdx.x] = 0.5f; }"
    halves = np.zeros(32, np.float32)
    run_text(other, "number", 1, (halves,))
    assert set(halves) == {0.5}
    assert out_of("number").tolist() == [*range(64)]


def test_arguments_must_have_the_size_of_their_parameters() -> None:
    with pytest.raises(TypeError, match=r"parameters of \[8\] bytes, not of \[4\]"):
        run_text(TEXT, "number", 1, (np.int32(1),))
    with pytest.raises(TypeError, match="no kernel"):
        run_text(TEXT, "unknown", 1, ())
