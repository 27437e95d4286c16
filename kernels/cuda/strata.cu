// Stratified sampling; see compressa.kernels.strata.
//
// Each thread takes four neighbouring strata: one division of 64 bits gives the first border, and
// what it leaves over is carried to the others.

#include "_team.cuh"
#include "_values.cuh"

struct Border {
    u64 low, over;  // floor(i * n / k), and the remainder
};

struct Strata {
    u64 k, step, more;  // n = step * k + more
};

DEVICE Strata strata_of(i64 n, i64 k) {
    u64 step = u64(n) / u64(k);
    return {u64(k), step, u64(n) - step * u64(k)};
}

DEVICE Border border(u64 i, i64 n, const Strata& strata) {
    u64 product = i * u64(n), low = product / strata.k;
    return {low, product - low * strata.k};
}

// Go on to the next border; return the size of the stratum between.
DEVICE u64 next(Border& at, const Strata& strata) {
    u64 size = strata.step;
    at.over += strata.more;
    if (at.over >= strata.k) at.over -= strata.k, ++size;
    at.low += size;
    return size;
}

template <bool EVEN>
DEVICE void store_indices(u32* out, i64 i, int count, const u64 (&four)[4]) {
    u32 words[4];
    for (int u = 0; u < 4; ++u) words[u] = u32(four[u]);
    store4<EVEN>(out, i, count, words);
}

template <bool EVEN>
DEVICE void store_indices(i64* out, i64 i, int count, const u64 (&four)[4]) {
    if (EVEN && count >= 4) {
        uint4* pairs = reinterpret_cast<uint4*>(out + i);
        for (int p = 0; p < 2; ++p)
            pairs[p] = make_uint4(
                u32(four[2 * p]), u32(four[2 * p] >> 32), u32(four[2 * p + 1]),
                u32(four[2 * p + 1] >> 32));
        return;
    }
    for (int u = 0; u < 4; ++u)
        if (u < count) out[i + u] = i64(four[u]);
}

template <bool EVEN, class Index>
DEVICE void stratified_all(Index* out, i64 n, const u32* words, i64 k) {
    Strata strata = strata_of(n, k);
    for (i64 i = 4 * team_number<1>(); i < k; i += 4 * team_count<1>()) {
        int count = int(min(i64(4), k - i));
        u32 drawn[4];
        u64 indices[4];
        load4<EVEN>(words, i, count, drawn);
        Border at = border(u64(i), n, strata);
        for (int u = 0; u < 4; ++u) {
            u64 low = at.low, size = next(at, strata);
            indices[u] = low + (drawn[u] * size >> 32);
        }
        store_indices<EVEN>(out, i, count, indices);
    }
}

template <class Index>
DEVICE void stratified(Index* out, i64 n, const u32* words, i64 k) {
    if (is_aligned(out, 16) && is_aligned(words, 16)) stratified_all<true>(out, n, words, k);
    else stratified_all<false>(out, n, words, k);
}

KERNEL(stratified_u32, CTA, (u32* out, i64 n, const u32* words, i64 k)) {
    stratified(out, n, words, k);
}

KERNEL(stratified_i64, CTA, (i64* out, i64 n, const u32* words, i64 k)) {
    stratified(out, n, words, k);
}

template <bool EVEN>
DEVICE void multiply_all(float* values, i64 n, i64 k) {
    Strata strata = strata_of(n, k);
    for (i64 i = 4 * team_number<1>(); i < k; i += 4 * team_count<1>()) {
        int count = int(min(i64(4), k - i));
        float four[4];
        load4<EVEN>(values, i, count, four);
        Border at = border(u64(i), n, strata);
        for (int u = 0; u < 4; ++u) four[u] *= float(i64(next(at, strata)));
        store4<EVEN>(values, i, count, four);
    }
}

KERNEL(multiply_by_strata, CTA, (float* values, i64 n, i64 k)) {
    if (is_aligned(values, 16)) multiply_all<true>(values, n, k);
    else multiply_all<false>(values, n, k);
}
