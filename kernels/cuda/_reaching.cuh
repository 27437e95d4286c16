// How many elements reach each of several thresholds.
#pragma once

#include "_select.cuh"

constexpr int THRESHOLDS = 16;  // at a time

DEVICE void compare_each(u32 bits, const u32* thresholds, u32 (&reaching)[THRESHOLDS]) {
    for (int t = 0; t < THRESHOLDS; ++t) reaching[t] += bits >= thresholds[t];
}

// Among the marked, or among all of a vector that has been surveyed if `marks` is null. Calls
// add(t, count) by one thread; what none reaches, as NONE, may be left out. The thresholds lie in
// shared memory; all threads of a CTA come here.
template <class Add>
DEVICE void count_reaching(
    const Source& from, const u64* marks, const u32* thresholds, Add add) {
    u32 reaching[THRESHOLDS] = {};
    if (marks) {
        i64 words = (from.n + TILE - 1) / TILE * WORDS;
        for (i64 word = team_number<1>(); word < words; word += team_count<1>())
            for_bits(marks[word], [&](int bit) {
                u32 bits = magnitude_bits(kept(from, 64 * word + bit));
                compare_each(bits, thresholds, reaching);
            });
    } else {
        for (i64 i = team_number<1>(); i < from.n; i += team_count<1>())
            compare_each(magnitude_bits(kept(from, i)), thresholds, reaching);
    }
    for (int t = 0; t < THRESHOLDS; ++t) {
        u64 count = cta_scan(u64(reaching[t])).total;
        if (threadIdx.x == 0 && count) add(t, count);
    }
}
