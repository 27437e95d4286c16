// Scaled signs of one block, by a team; see compressa.kernels.onebit for the arithmetic.
//
// A team reads its block into shared memory, where sixteen lanes sum it up in the written order and
// where the planes of signs are gathered from. A block that does not fit goes through in pieces,
// and is read once more for its signs. Blocks of the usual sizes are held in registers as well,
// where a thread has all planes of four bytes.
#pragma once

#include "_held.cuh"
#include "_signs.cuh"
#include "_sums.cuh"
#include "_team.cuh"
#include "_values.cuh"

constexpr int STAGED = 32;  // elements of a block, per thread, that shared memory holds

DEVICE double add_magnitude(double sum, double p) { return sum + fabs(p); }

// The sum of |p|, in the written order; the block's last piece is in the stage then.
template <int THREADS>
DEVICE double sum_magnitudes(Values x, Feedback feedback, i64 low, int size, float* stage) {
    auto fill = [&](int first, int count) {
        for (int i = 4 * team_thread<THREADS>(); i < count; i += 4 * THREADS) {
            float p[4];
            effective4(x, feedback, low + first + i, min(4, count - i), p);
            store4(stage, i, 4, p);
        }
    };
    return team_tree_sum<THREADS, STAGED * THREADS>(stage, size, fill, add_magnitude);
}

// What is left of p, whose sign is given.
DEVICE float left_of(float p, u32 sign, float mean, float back) {
    return (p - __uint_as_float(__float_as_uint(mean) | sign)) * back;
}

// Block b of n elements.
template <int THREADS>
DEVICE void quantize_signs(
    Values x, Feedback feedback, u8* bits, float* scales, i64 b, i64 n, int block) {
    float* stage = team_stage<THREADS, STAGED>();
    i64 low = b * block;
    int size = int(min(i64(block), n - low)), width = sign_width(size);
    double sum = sum_magnitudes<THREADS>(x, feedback, low, size, stage);
    float mean = float(sum / double(size));
    bool finite = is_finite(mean), staged = size <= STAGED * THREADS;
    for (int i = team_thread<THREADS>(); i < width; i += THREADS) {
        u32 byte = 0;
        for (int plane = 0; plane < PLANES && finite; ++plane) {
            int j = plane * width + i;
            if (j >= size) continue;
            float p = staged ? stage[j] : effective(x, feedback, low + j);
            u32 sign = sign_of(p);
            byte |= sign >> 31 << plane;
            if (feedback.residual)
                feedback.residual[low + j] = left_of(p, sign, mean, feedback.back);
        }
        bits[low / PLANES + i] = u8(byte);
    }
    if (team_thread<THREADS>() == 0) scales[b] = finite ? mean : quiet_nan();
}

// A team's block, the b-th, of the group that was asked for; see `for_held`.
template <class H, class AskNext>
DEVICE void quantize_signs_asked(
    const Asked<H>& asked, Values x, Feedback feedback, u8* bits, float* scales, i64 b,
    AskNext ask_next) {
    float p[H::FOURS][4];
    effective_held<H>(asked, x, feedback, p);
    float mean = float(sum_held<H, STAGED>(p, add_magnitude) / double(H::BLOCK));
    ask_next();
    u32 word = 0;
    UNROLLED for (int plane = 0; plane < PLANES; ++plane)
        for (int u = 0; u < 4; ++u) {
            u32 sign = sign_of(p[plane][u]);
            word |= sign >> 31 << (8 * u + plane);
            p[plane][u] = left_of(p[plane][u], sign, mean, feedback.back);
        }
    bool finite = is_finite(mean);
    store4<true>(bits, four_at<H>(b * H::WIDTH, 0), 4, finite ? word : 0u);
    if (feedback.residual && finite) leave_held<H>(feedback.residual, b * H::BLOCK, p);
    if (team_thread<H::TEAM>() == 0) scales[b] = finite ? mean : quiet_nan();
}

// The sums of block b of n elements. `payloads` says where what payload r has begins: its bits
// (null where there is no such payload) and scales; `alone` and `even` are as in _blockwise.cuh.
template <int THREADS, bool WHOLE, class Payloads>
DEVICE void sum_sign_fours(
    const Payloads& payloads, Sums sums, bool alone, i64 b, i64 low, int size, float weight) {
    float steps[MOST];
    FOR_PAYLOADS(r) steps[r] = payloads.codes(r) ? weight * payloads.scales(r)[b] : 0.0f;
    for_planes<THREADS, WHOLE>(size, [&](int plane, int i, int some, int first, int count) {
        u32 words[MOST];
        float total[4];
        FOR_PAYLOADS(r) if (payloads.codes(r))
            words[r] = load4<WHOLE>(payloads.codes(r), low / PLANES + i, some);
        begin4<WHOLE>(sums, low + first, count, total);
        if (alone) total[0] = total[1] = total[2] = total[3] = -0.0f;
        FOR_PAYLOADS(r) if (payloads.codes(r))
            for (int u = 0; u < 4; ++u) {
                u32 sign = sign_bit(words[r] >> plane, u);
                total[u] = total[u] + __uint_as_float(__float_as_uint(steps[r]) ^ sign);
            }
        finish4<WHOLE>(sums, low + first, count, total);
    });
}

template <int THREADS, class Payloads>
DEVICE void sum_signs(
    const Payloads& payloads, Sums sums, bool alone, i64 b, i64 n, int block, float weight,
    bool even) {
    i64 low = b * block;
    int size = int(min(i64(block), n - low));
    if (even && size == block)
        sum_sign_fours<THREADS, true>(payloads, sums, alone, b, low, size, weight);
    else sum_sign_fours<THREADS, false>(payloads, sums, alone, b, low, size, weight);
}
