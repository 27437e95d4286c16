// The sum of two sparse vectors; see compressa.kernels.sparse_sum.
//
// The i-th index of a vector comes after i of its own, after those of the other vector that are
// smaller, which a binary search counts, and once for each that both have. So a tile of indices
// needs to know how many before it are in both: `count_shared` counts them, `scan_counts` adds up.

#include "_tiles.cuh"
#include "_values.cuh"

constexpr int EACH = 4;  // indices that a thread of a tile takes; as in sparse_sum.py
constexpr int TILE = EACH * CTA;

// How many of `count` increasing indices are below one: never more than there are, whatever the
// indices are, as their check may be on its way.
DEVICE i64 count_below(const u32* indices, i64 count, u32 index) {
    i64 low = 0, high = count;
    while (low < high) {
        i64 middle = (low + high) / 2;
        if (indices[middle] < index) low = middle + 1;
        else high = middle;
    }
    return low;
}

// Where an index is, or would be, in the other vector.
struct Found {
    i64 below;
    bool shared;
};

DEVICE Found find_in(const u32* others, i64 count, u32 index) {
    i64 below = count_below(others, count, index);
    return {below, below < count && others[below] == index};
}

KERNEL(
    count_shared, CTA,
    (const u32* __restrict__ own, i64 count, const u32* __restrict__ others, i64 other_count,
     i64 tiles, i64* __restrict__ counts)) {
    for (i64 t = blockIdx.x; t < tiles; t += gridDim.x) {
        i64 shared = 0;
        for (int e = 0; e < EACH; ++e) {
            i64 i = t * TILE + e * CTA + int(threadIdx.x);
            if (i < count) shared += find_in(others, other_count, own[i]).shared;
        }
        shared = cta_scan(shared).total;
        if (threadIdx.x == 0) counts[t] = shared;
    }
}

// One vector's indices and values; where the other has them, too, the first writes the sum, and the
// second a zero: from the end on, as many as there are.
KERNEL(
    merge, CTA,
    (const u32* __restrict__ own, const float* __restrict__ own_values, i64 count,
     const u32* __restrict__ others, const float* __restrict__ other_values, i64 other_count,
     i64 tiles, const i64* __restrict__ counts, int is_first, u32* __restrict__ indices,
     float* __restrict__ values)) {
    for (i64 t = blockIdx.x; t < tiles; t += gridDim.x) {
        i64 before = counts[t];
        for (int e = 0; e < EACH; ++e) {
            i64 i = t * TILE + e * CTA + int(threadIdx.x);
            bool here = i < count;
            Found found = here ? find_in(others, other_count, own[i]) : Found{0, false};
            Scanned<i64> shared = cta_scan(i64(found.shared));
            i64 earlier = before + shared.before, at = i + found.below - earlier;
            before += shared.total;
            if (!here) continue;
            u32 index = own[i];
            float value = own_values[i];
            if (found.shared && is_first) value = value + other_values[found.below];
            if (found.shared && !is_first)
                at = count + other_count - 1 - earlier, index = 0, value = 0.0f;
            indices[at] = index, values[at] = value;
        }
    }
}
