// What a step takes up from the residual, and whether all of it is finite; see
// compressa.kernels.feedback. And whether what is too small to be normal survives here at all.

#include "_answer.cuh"
#include "_bytes.cuh"
#include "_values.cuh"

template <bool EVEN>
DEVICE void absorb(
    float* x, const float* residual, float* kept, float loss_scale, float back, i64 n) {
    for_turns(n, [&](const Turn& turn) {
        float p[FOURS_A_TURN][4], left[FOURS_A_TURN][4];
        UNROLLED for (int v = 0; v < FOURS_A_TURN; ++v) {
            load4<EVEN>(x, turn.i[v], turn.count[v], p[v]);
            load4<EVEN>(residual, turn.i[v], turn.count[v], left[v]);
        }
        UNROLLED for (int v = 0; v < FOURS_A_TURN; ++v) {
            for (int u = 0; u < 4; ++u) {
                p[v][u] = p[v][u] + loss_scale * left[v][u];
                left[v][u] = is_finite(p[v][u]) ? p[v][u] * back : left[v][u];
            }
            store4<EVEN>(x, turn.i[v], turn.count[v], p[v]);
            store4<EVEN>(kept, turn.i[v], turn.count[v], left[v]);
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

// Whether all bits of an exponent are set in a number of so many bits, of those in a word. Of a
// number of 64 bits the exponent is in the upper word.
template <int BITS>
DEVICE bool has_nonfinite(u32 word, u32 exponent) {
    bool found = (word & exponent) == exponent;
    return BITS == 16 ? found || (word >> 16 & exponent) == exponent : found;
}

template <int BITS>
DEVICE void find_nonfinite(const u8* x, i64 size, u32 exponent, u64* answer) {
    bool found = false;
    i64 words = word_count<uint4>(x, size);
    for (i64 w = team_number<1>(); w < words; w += team_count<1>()) {
        uint4 four = load_16(x, size, w);
        found = found || has_nonfinite<BITS>(four.y, exponent) ||
                has_nonfinite<BITS>(four.w, exponent);
        if (BITS < 64)
            found = found || has_nonfinite<BITS>(four.x, exponent) ||
                    has_nonfinite<BITS>(four.z, exponent);
    }
    answer_any(answer, found);
}

KERNEL(find_nonfinite_16, CTA, (const u8* x, i64 size, u32 exponent, u64* answer)) {
    find_nonfinite<16>(x, size, exponent, answer);
}

KERNEL(find_nonfinite_32, CTA, (const u8* x, i64 size, u32 exponent, u64* answer)) {
    find_nonfinite<32>(x, size, exponent, answer);
}

KERNEL(find_nonfinite_64, CTA, (const u8* x, i64 size, u32 exponent, u64* answer)) {
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
