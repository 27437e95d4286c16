// Sums of block-wise payloads, one block by a team.
#pragma once

#include "_blockwise.cuh"
#include "_sums.cuh"

// Four neighbours of a plane, out of four bytes.
template <int EACH>
DEVICE void decode4(
    u32 word, int plane, int zero, float scale, float offset, bool ranged, float (&values)[4]) {
    constexpr int BITS = 8 / EACH;
    for (int u = 0; u < 4; ++u) {
        u32 code = word >> (8 * u + BITS * plane) & ((1u << BITS) - 1u);
        int q = EACH == 1 && !ranged ? int(code << 24) >> 24 : int(code) - zero;
        values[u] = decoded(q, scale, offset, ranged);
    }
}

// The sums of block b of n elements. `payloads` says where what payload r has begins: its codes
// (null where there is no such payload), scales and offsets. A payload that comes alone is decoded,
// not added to 0, which would take the sign off its -0: and -0 + x is x, whatever x is.
template <int THREADS, int EACH, class Payloads>
DEVICE void sum_block(
    const Payloads& payloads, bool ranged, Sums sums, bool alone, i64 b, i64 n, int block,
    int zero, float weight) {
    i64 low = b * block;
    int size = int(min(i64(block), n - low)), width = (size + EACH - 1) / EACH;
    float own[MOST], offsets[MOST];
    FOR_PAYLOADS(r) {
        own[r] = payloads.codes(r) ? payloads.scales(r)[b] : 0.0f;
        offsets[r] = payloads.codes(r) && ranged ? payloads.offsets(r)[b] : 0.0f;
    }
    for (int i = 4 * team_thread<THREADS>(); i < width; i += 4 * THREADS) {
        u32 words[MOST];
        FOR_PAYLOADS(r) if (payloads.codes(r))
            words[r] = load4(payloads.codes(r), low / EACH + i, min(4, width - i));
        for (int plane = 0; plane < EACH; ++plane) {
            int first = plane * width + i, count = min(min(4, width - i), size - first);
            float total[4], values[4];
            begin4(sums, low + first, count, total);
            if (alone) total[0] = total[1] = total[2] = total[3] = -0.0f;
            FOR_PAYLOADS(r) if (payloads.codes(r)) {
                decode4<EACH>(words[r], plane, zero, own[r], offsets[r], ranged, values);
                add4(total, values, weight);
            }
            finish4(sums, low + first, count, total);
        }
    }
}
