// The 15 random bits of all elements of an array, for whoever uses every one; see `random_halves`.
#pragma once

#include "_philox.cuh"
#include "_team.cuh"

// Give use(i, count, halves) the numbers of the elements i to i + count - 1, count being 4 or 1.
//
// A call of Philox has the numbers of two neighbours in each quarter of a row. A thread makes two
// calls, for four neighbours in each.
template <class Use>
DEVICE void for_random_halves(const Noise& noise, i64 n, Use use) {
    constexpr int QUARTERS = 4, PARTS = ROW / QUARTERS / 4;
    i64 first = noise.start / ROW, rows = (noise.start + n - 1) / ROW - first + 1;
    for (i64 part = team_number<1>(); part < rows * PARTS; part += team_count<1>()) {
        i64 row = first + part / PARTS, column = 4 * (part % PARTS);
        u32 left[4], right[4];
        philox(noise, u64(row * ROW_BLOCKS + column / 2), left);
        philox(noise, u64(row * ROW_BLOCKS + column / 2 + 1), right);
        for (int quarter = 0; quarter < QUARTERS; ++quarter) {
            u32 halves[4] = {
                left[quarter] & 0x7FFFu, left[quarter] >> 16 & 0x7FFFu, right[quarter] & 0x7FFFu,
                right[quarter] >> 16 & 0x7FFFu};
            i64 i = row * ROW + quarter * (ROW / QUARTERS) + column - noise.start;
            if (i >= 0 && i + 4 <= n) {
                use(i, 4, halves);
                continue;
            }
            for (int u = 0; u < 4; ++u) {
                u32 half[4] = {halves[u], 0, 0, 0};
                if (i + u >= 0 && i + u < n) use(i + u, 1, half);
            }
        }
    }
}
