// Sums of several payloads whose blocks have scales, one block by a team.
//
// `payloads` says of payload r where its `codes` begin (null where there is no such payload), the
// `scale` of one of its blocks, and how by that four neighbours of a plane are decoded.
#pragma once

#include "_sums.cuh"
#include "_team.cuh"

// A block of `size` elements from `low` on; see below. FOURS: that a thread takes together of a
// plane, and if there are several of all planes. WHOLE: the block has fours only, at addresses that
// allow vectors.
template <int THREADS, int EACH, int FOURS, bool WHOLE, class Payloads>
DEVICE void sum_fours(
    const Payloads& payloads, Sums sums, bool alone, i64 b, i64 low, int size, float weight) {
    constexpr int STEP = 4 * THREADS, PLANES = FOURS > 1 ? EACH : 1;
    int width = (size + EACH - 1) / EACH;
    for (int i = 4 * team_thread<THREADS>(); i < width; i += FOURS * STEP)
        for (int plane = 0; plane < EACH; plane += PLANES) {
            auto for_fours = [&](auto visit) {
                UNROLLED for (int f = 0; f < FOURS; ++f) {
                    int own = i + f * STEP;
                    if (f && own >= width) continue;
                    UNROLLED for (int p = 0; p < PLANES; ++p) {
                        int first = (plane + p) * width + own;
                        visit(f, p, first, WHOLE ? 4 : min(min(4, width - own), size - first));
                    }
                }
            };
            float total[FOURS][PLANES][4] = {};
            for_fours([&](int f, int p, int first, int count) {
                begin4<WHOLE>(sums, low + first, count, total[f][p]);
                if (alone)
                    for (int u = 0; u < 4; ++u) total[f][p][u] = -0.0f;
            });
            FOR_ASKED(from) if (payloads.codes(from)) {
                u32 words[ASKED][FOURS] = {};
                decltype(payloads.scale(from, b)) scales[ASKED];
                FOR_EACH_ASKED(r) if (payloads.codes(from + r)) {
                    const u8* codes = payloads.codes(from + r);
                    UNROLLED for (int f = 0; f < FOURS; ++f) {
                        int own = i + f * STEP, some = WHOLE ? 4 : min(4, width - own);
                        if (f && own >= width) continue;
                        words[r][f] = load4<WHOLE>(codes, low / EACH + own, some);
                    }
                    scales[r] = payloads.scale(from + r, b);
                }
                for_fours([&](int f, int p, int, int) {
                    FOR_EACH_ASKED(r) if (payloads.codes(from + r)) {
                        float values[4];
                        payloads.template decode4<EACH>(words[r][f], plane + p, scales[r], values);
                        add4(total[f][p], values, weight);
                    }
                });
            }
            for_fours([&](int f, int p, int first, int count) {
                finish4<WHOLE>(sums, low + first, count, total[f][p]);
            });
        }
}

// The sums of block b of n elements. A payload that comes alone is decoded, not added to 0, which
// would take the sign off its -0: and -0 + x is x, whatever x is. Even: fours of whole blocks allow
// vectors everywhere.
template <int THREADS, int EACH, int FOURS, class Payloads>
DEVICE void sum_block(
    const Payloads& payloads, Sums sums, bool alone, i64 b, i64 n, int block, float weight,
    bool even) {
    i64 low = b * block;
    int size = int(min(i64(block), n - low));
    if (even && size == block)
        sum_fours<THREADS, EACH, FOURS, true>(payloads, sums, alone, b, low, size, weight);
    else
        sum_fours<THREADS, EACH, FOURS, false>(payloads, sums, alone, b, low, size, weight);
}
