// A team: the threads that work on one block of elements together: a warp or half of one, or all of
// a CTA.
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
    if (THREADS <= WARP) __syncwarp();
    else __syncthreads();
}

// What one thread has, told to all.
template <int THREADS, class T>
DEVICE T team_told(T value) {
    if (THREADS <= WARP) return __shfl_sync(WHOLE_WARP, value, 0, THREADS <= WARP ? THREADS : WARP);
    __shared__ T told;
    __syncthreads();  // until the last one is read by all
    if (threadIdx.x == 0) told = value;
    __syncthreads();
    return told;
}

template <int THREADS>
DEVICE u32 team_max(u32 value) {
    for (int step = (THREADS <= WARP ? THREADS : WARP) / 2; step; step /= 2) {
        u32 other = __shfl_xor_sync(WHOLE_WARP, value, step);
        value = other > value ? other : value;
    }
    if (THREADS <= WARP) return value;
    __shared__ u32 found[CTA / WARP];
    __syncthreads();
    if (threadIdx.x % WARP == 0) found[threadIdx.x / WARP] = value;
    __syncthreads();
    for (int warp = 0; warp < THREADS / WARP; ++warp)
        value = found[warp] > value ? found[warp] : value;
    return value;
}

// Streams: a thread takes a batch of fours at a time, and asks for all before it works on one.
constexpr int FOURS_A_BATCH = 2;  // as in _work.py

struct Batch {
    i64 i[FOURS_A_BATCH];  // elements that the vectors begin with
    int count[FOURS_A_BATCH];
};

// Calls take(batch) until all n elements have been taken.
template <class Take>
DEVICE void for_batches(i64 n, Take take) {
    constexpr int ROW = 4 * CTA;
    i64 step = i64(gridDim.x) * FOURS_A_BATCH * ROW;
    for (i64 low = i64(blockIdx.x) * FOURS_A_BATCH * ROW; low < n; low += step) {
        Batch batch;
        UNROLLED for (int v = 0; v < FOURS_A_BATCH; ++v) {
            batch.i[v] = low + v * ROW + 4 * int(threadIdx.x);
            batch.count[v] = int(max(i64(0), min(i64(4), n - batch.i[v])));
        }
        take(batch);
    }
}

// Sums in the written order: 16 lanes, then halving. A block passes through shared memory piece by
// piece, since each lane needs what all threads have read.

// Of shared memory: EACH floats for each thread. Teams of any size share one.
template <int EACH>
DEVICE float* stage() {
    __shared__ float4 room[CTA * EACH / 4];
    return reinterpret_cast<float*>(room);
}

// The team's own part of it.
template <int THREADS, int EACH>
DEVICE float* team_stage() {
    return stage<EACH>() + int(threadIdx.x) / THREADS * THREADS * EACH;
}

// What the first 16 threads of a team, a lane each, have after a piece of so many values:
// add(sum, value) for one after the other. Where the count is known, no loop is left of it.
template <class Add>
DEVICE double lane_sum(const float* piece, int lane, int count, double sum, Add add) {
    if (lane >= LANES) return sum;
    int whole = count / LANES * LANES;
    for (int i = 0; i < whole; i += LANES) sum = add(sum, double(piece[i + lane]));
    bool more = count > whole && u32(lane) < u32(count - whole);
    return more ? add(sum, double(piece[whole + lane])) : sum;
}

// Every 16 threads get the sum of theirs.
DEVICE double halved(double sum) {
    for (int half = LANES / 2; half; half /= 2) sum += __shfl_xor_sync(WHOLE_WARP, sum, half);
    return sum;
}

// The sum of `size` values, for all threads, each added by add(sum, value): fill(first, count) puts
// those from `first` on into the stage, which holds PIECE.
template <int THREADS, int PIECE, class Fill, class Add>
DEVICE double team_tree_sum(const float* stage, int size, Fill fill, Add add) {
    double sum = 0.0;
    for (int first = 0; first < size; first += PIECE) {
        int count = min(PIECE, size - first);
        team_sync<THREADS>();  // until the piece before is read by all
        fill(first, count);
        team_sync<THREADS>();
        sum = lane_sum(stage, team_thread<THREADS>(), count, sum, add);
    }
    return team_told<THREADS>(halved(sum));
}

constexpr int STAGED_SQUARES = 8;  // for each thread, where squares are summed up

// A float32's square is exact in a double, so that one rounding is that of the sum alone.
DEVICE double add_square(double sum, double value) { return fma(value, value, sum); }
