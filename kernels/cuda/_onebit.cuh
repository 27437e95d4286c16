// Scaled signs of one block, by a team; see compressa.kernels.onebit for the arithmetic.
//
// A team reads its block into shared memory, where sixteen lanes sum it up in the written order and
// where the planes of signs are gathered from. A block that does not fit goes through in pieces,
// and is read once more for its signs.
#pragma once

#include "_signs.cuh"
#include "_sums.cuh"
#include "_team.cuh"
#include "_values.cuh"

constexpr int STAGED = 32;  // elements of a block, per thread, that shared memory holds

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
    return team_tree_sum<THREADS, STAGED * THREADS>(
        stage, size, fill, [](double p) { return fabs(p); });
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
            float decoded = __uint_as_float(__float_as_uint(mean) | sign);
            if (feedback.residual) feedback.residual[low + j] = (p - decoded) * feedback.back;
        }
        bits[low / PLANES + i] = u8(byte);
    }
    if (team_thread<THREADS>() == 0) scales[b] = finite ? mean : quiet_nan();
}

// The sums of block b of n elements. `payloads` says where what payload r has begins: its bits
// (null where there is no such payload) and scales; `alone` is as in _blockwise.cuh.
template <int THREADS, class Payloads>
DEVICE void sum_signs(
    const Payloads& payloads, Sums sums, bool alone, i64 b, i64 n, int block, float weight) {
    i64 low = b * block;
    int size = int(min(i64(block), n - low)), width = sign_width(size), fours = (width + 3) / 4;
    float steps[MOST];
    FOR_PAYLOADS(r) steps[r] = payloads.codes(r) ? weight * payloads.scales(r)[b] : 0.0f;
    for (int t = team_thread<THREADS>(); t < PLANES * fours; t += THREADS) {
        int plane = t / fours, i = 4 * (t % fours), first = plane * width + i;
        int count = min(min(4, width - i), size - first);
        if (count < 1) continue;
        u32 words[MOST];
        float total[4];
        FOR_PAYLOADS(r) if (payloads.codes(r))
            words[r] = load4(payloads.codes(r), low / PLANES + i, min(4, width - i)) >> plane;
        begin4(sums, low + first, count, total);
        if (alone) total[0] = total[1] = total[2] = total[3] = -0.0f;
        FOR_PAYLOADS(r) if (payloads.codes(r))
            for (int u = 0; u < 4; ++u)
                total[u] =
                    total[u] + __uint_as_float(__float_as_uint(steps[r]) ^ sign_bit(words[r], u));
        finish4(sums, low + first, count, total);
    }
}
