// The running sums of an array of counts.
//
// What tiles of an array find is listed in three launches: one counts what each tile has,
// `scan_counts` turns the counts into positions, and one writes from these on.
#pragma once

#include "_scan.cuh"

// Each of n counts becomes the sum of those before it, and counts[n] that of all: for one CTA.
KERNEL(scan_counts, CTA, (i64* counts, i64 n)) {
    constexpr int EACH = 8;
    i64 before = 0;
    for (i64 low = 0; low < n; low += EACH * CTA) {
        i64 first = low + EACH * int(threadIdx.x), mine[EACH], sum = 0;
        for (int u = 0; u < EACH; ++u) {
            mine[u] = first + u < n ? counts[first + u] : 0;
            sum += mine[u];
        }
        Scanned<i64> scanned = cta_scan(sum);
        i64 at = before + scanned.before;
        for (int u = 0; u < EACH; ++u) {
            if (first + u < n) counts[first + u] = at;
            at += mine[u];
        }
        before += scanned.total;
    }
    if (threadIdx.x == 0) counts[n] = before;
}
