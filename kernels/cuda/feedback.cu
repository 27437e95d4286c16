// What a step takes up from the residual, and whether all of it is finite; see
// compressa.kernels.feedback. And whether what is too small to be normal survives here at all.

#include "_answer.cuh"
#include "_bytes.cuh"
#include "_values.cuh"

template <bool EVEN>
DEVICE void absorb(
    float* x, const float* residual, float* kept, float loss_scale, float back, i64 n) {
    for_batches(n, [&](const Batch& batch) {
        float p[FOURS_A_BATCH][4], left[FOURS_A_BATCH][4];
        UNROLLED for (int v = 0; v < FOURS_A_BATCH; ++v) {
            load4<EVEN>(x, batch.i[v], batch.count[v], p[v]);
            load4<EVEN>(residual, batch.i[v], batch.count[v], left[v]);
        }
        UNROLLED for (int v = 0; v < FOURS_A_BATCH; ++v) {
            for (int u = 0; u < 4; ++u) {
                p[v][u] = p[v][u] + loss_scale * left[v][u];
                left[v][u] = is_finite(p[v][u]) ? p[v][u] * back : left[v][u];
            }
            store4<EVEN>(x, batch.i[v], batch.count[v], p[v]);
            store4<EVEN>(kept, batch.i[v], batch.count[v], left[v]);
        }
    });
}

KERNEL(
    absorb_residual, CTA,
    (float* __restrict__ x, const float* __restrict__ residual, float* __restrict__ kept,
     float loss_scale, float back, i64 n)) {
    bool even = is_aligned(x, 16) && is_aligned(residual, 16) && is_aligned(kept, 16);
    if (even) absorb<true>(x, residual, kept, loss_scale, back, n);
    else absorb<false>(x, residual, kept, loss_scale, back, n);
}

// Whether all bits of an exponent are set in a number of so many bits, of those in 16 bytes. Of a
// number of 64 bits the exponent is in the upper word. Without a branch: a load may wait at none.
template <int BITS>
DEVICE bool has_nonfinite(uint4 four, u32 exponent) {
    auto all_set = [&](u32 word) {
        bool low = (word & exponent) == exponent;
        return BITS == 16 ? low | ((word >> 16 & exponent) == exponent) : low;
    };
    bool found = all_set(four.y) | all_set(four.w);
    return BITS == 64 ? found : found | all_set(four.x) | all_set(four.z);
}

// A thread takes two whole words at a time, and asks for both first. The first and the last word
// may have bytes of others.
template <int BITS>
DEVICE void find_nonfinite(const u8* x, i64 size, u32 exponent, u64* answer) {
    i64 lead = lead_of<uint4>(x), whole = (lead + size) / 16, step = team_count<1>();
    i64 thread = team_number<1>();
    bool found = thread < 2 && has_nonfinite<BITS>(load_16(x, size, thread ? whole : 0), exponent);
    const uint4* words = reinterpret_cast<const uint4*>(x - lead);
    for (i64 w = i64(lead > 0) + thread; w < whole; w += 2 * step) {
        uint4 one = words[w], other = words[min(w + step, whole - 1)];
        found |= has_nonfinite<BITS>(one, exponent) | has_nonfinite<BITS>(other, exponent);
    }
    answer_any(answer, found);
}

KERNEL(
    find_nonfinite_16, CTA,
    (const u8* __restrict__ x, i64 size, u32 exponent, u64* __restrict__ answer)) {
    find_nonfinite<16>(x, size, exponent, answer);
}

KERNEL(
    find_nonfinite_32, CTA,
    (const u8* __restrict__ x, i64 size, u32 exponent, u64* __restrict__ answer)) {
    find_nonfinite<32>(x, size, exponent, answer);
}

KERNEL(
    find_nonfinite_64, CTA,
    (const u8* __restrict__ x, i64 size, u32 exponent, u64* __restrict__ answer)) {
    find_nonfinite<64>(x, size, exponent, answer);
}

// Both are parameters, so that the compiler knows nothing of the product; and bits are compared,
// since a comparison of numbers would see zeros on both sides.
KERNEL(find_flushed, CTA, (float small, float one, u64* answer)) {
    float product = small * one, sum = product + small;
    bool kept = __float_as_uint(product) == __float_as_uint(small) &&
                __float_as_uint(sum) == 2 * __float_as_uint(small);
    answer_any(answer, !kept);
}
