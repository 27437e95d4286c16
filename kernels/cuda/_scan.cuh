// Sums over what comes before, within a CTA; and the CTA that is the last to come to a point.
#pragma once

#include "_team.cuh"

template <class T>
struct Scanned {
    T before, total;  // of the threads before this one, and of all
};

// All threads of a CTA come here.
template <class T>
DEVICE Scanned<T> cta_scan(T value) {
    int lane = int(threadIdx.x) % WARP, warp = int(threadIdx.x) / WARP;
    T up_to = value;
    for (int step = 1; step < WARP; step *= 2) {
        T other = __shfl_up_sync(WHOLE_WARP, up_to, step);
        if (lane >= step) up_to += other;
    }
    __shared__ T sums[CTA / WARP];
    __syncthreads();  // until those of the last scan are read by all
    if (lane == WARP - 1) sums[warp] = up_to;
    __syncthreads();
    T before = T(0), total = T(0);
    for (int other = 0; other < CTA / WARP; ++other) {
        if (other < warp) before += sums[other];
        total += sums[other];
    }
    return {before + up_to - value, total};
}

// Whether all other CTAs have been here: then what they wrote can be read, by `fresh`. The counter
// begins at zero. All threads of a CTA come here.
DEVICE bool is_last_cta(u32* arrived) {
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(arrived, 1u) == gridDim.x - 1u;
    __syncthreads();
    __threadfence();
    return last;
}

// What lies in memory now, whatever the first-level cache remembers.
template <class T>
DEVICE T fresh(const T* at) {
    return *static_cast<const volatile T*>(at);
}
