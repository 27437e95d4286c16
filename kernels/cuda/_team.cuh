// A team: the threads that work on one block of elements together, a warp or all of a CTA.
#pragma once

#include "_kernel.cuh"

constexpr int CTA = 256;
constexpr int LANES = 16;  // of the written order of sums; see kernels/_numpy.py

template <int THREADS>
DEVICE int team_thread() {
    return int(threadIdx.x) % THREADS;
}

// Number of this thread's team, and of all teams.
template <int THREADS>
DEVICE i64 team_number() {
    return i64(blockIdx.x) * (CTA / THREADS) + int(threadIdx.x) / THREADS;
}

template <int THREADS>
DEVICE i64 team_count() {
    return i64(gridDim.x) * (CTA / THREADS);
}

// A barrier of the team.
template <int THREADS>
DEVICE void team_sync() {
    if (THREADS == WARP) __syncwarp();
    else __syncthreads();
}

// What one thread has, told to all.
template <int THREADS, class T>
DEVICE T team_told(T value) {
    if (THREADS == WARP) return __shfl_sync(WHOLE_WARP, value, 0);
    __shared__ T told;
    __syncthreads();  // until the last one is read by all
    if (threadIdx.x == 0) told = value;
    __syncthreads();
    return told;
}

template <int THREADS>
DEVICE u32 team_max(u32 value) {
    for (int step = WARP / 2; step; step /= 2) {
        u32 other = __shfl_xor_sync(WHOLE_WARP, value, step);
        value = other > value ? other : value;
    }
    if (THREADS == WARP) return value;
    __shared__ u32 found[THREADS / WARP];
    __syncthreads();
    if (threadIdx.x % WARP == 0) found[threadIdx.x / WARP] = value;
    __syncthreads();
    for (int warp = 0; warp < THREADS / WARP; ++warp)
        value = found[warp] > value ? found[warp] : value;
    return value;
}

// The sum of term(i) for all i below size, in the written order: 16 lanes, then halving.
template <int THREADS, class Term>
DEVICE double team_tree_sum(int size, Term term) {
    double sum = 0.0;
    int lane = team_thread<THREADS>();
    if (lane < LANES)
        for (int i = lane; i < size; i += LANES) sum += term(i);
    for (int half = LANES / 2; half; half /= 2) sum += __shfl_xor_sync(WHOLE_WARP, sum, half);
    return team_told<THREADS>(sum);
}
