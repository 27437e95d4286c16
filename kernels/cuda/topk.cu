// What a sparse payload needs besides selection (select.cu); see compressa.kernels.topk.

#include "_team.cuh"
#include "_values.cuh"

constexpr int PART = 64 * CTA;  // indices that a CTA looks at together; as in topk.py

// For each part, whether an index is not larger than the one before.
KERNEL(find_disorder, CTA, (const u32* indices, i64 count, u32* disorder)) {
    i64 parts = (count + PART - 1) / PART;
    for (i64 part = blockIdx.x; part < parts; part += gridDim.x) {
        i64 end = min(count, (part + 1) * PART);
        u32 wrong = 0;
        for (i64 j = part * PART + int(threadIdx.x); j < end; j += CTA)
            wrong |= j && indices[j] <= indices[j - 1];
        wrong = team_max<CTA>(wrong);
        if (threadIdx.x == 0) disorder[part] = wrong;
    }
}

// Indices may come from outside, and their check may be on its way: what is too large is left out
// below.

// Repeated indices are added in their order: each warp looks at all of them for those of a part of
// `out` that is its own.
DEVICE void add_in_order(
    const u32* indices, const float* values, i64 count, float* out, i64 n, float weight) {
    i64 size = (n + team_count<WARP>() - 1) / team_count<WARP>();
    i64 low = team_number<WARP>() * size, high = min(low + size, n), lane = team_thread<WARP>();
    for (i64 first = 0; first < count; first += WARP) {
        i64 j = first + lane, i = j < count ? i64(indices[j]) : n;
        u32 own = __ballot_sync(WHOLE_WARP, i >= low && i < high);
        for (; own; own &= own - 1u) {
            if (lane == __ffs(own) - 1) out[i] += weight * values[j];
            __syncwarp();
        }
    }
}

// `out` is not __restrict__: repeated indices are added by one lane after another.
KERNEL(
    scatter_add, CTA,
    (const u32* __restrict__ indices, const float* __restrict__ values, i64 count,
     float* out, i64 n, float weight, const u32* __restrict__ disorder)) {
    u32 wrong = 0;
    for (i64 part = threadIdx.x; part < (count + PART - 1) / PART; part += CTA)
        wrong |= disorder[part];
    if (team_max<CTA>(wrong)) return add_in_order(indices, values, count, out, n, weight);
    for (i64 j = team_number<1>(); j < count; j += team_count<1>())
        if (indices[j] < n) out[indices[j]] += weight * values[j];
}

// The indices are distinct.
KERNEL(
    return_unsent, CTA,
    (float* __restrict__ residual, i64 n, const u32* __restrict__ indices,
     const float* __restrict__ exact, const float* __restrict__ sent, i64 count, float back)) {
    for (i64 j = team_number<1>(); j < count; j += team_count<1>()) {
        if (!is_finite(exact[j]) || indices[j] >= n) continue;
        float arrived = is_finite(sent[j]) ? sent[j] : 0.0f;
        float lost = (exact[j] - arrived) * back;
        if (lost != 0.0f) residual[indices[j]] += lost;
    }
}
