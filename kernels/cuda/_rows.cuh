// The random bits of all elements of an array, for whoever uses every one; see `random_fractions`.
#pragma once

#include "_philox.cuh"
#include "_team.cuh"

// Give use(i, count, fractions) the numbers of the elements i to i + count - 1, count being 4 or 1.
//
// A call of Philox has the numbers of elements in each eighth of a row. A thread makes four calls,
// for four neighbours in each.
template <class Use>
DEVICE void for_random_fractions(const Noise& noise, i64 n, Use use) {
    constexpr int EIGHTHS = 8, PARTS = ROW / EIGHTHS / 4;
    i64 first = noise.start / ROW, rows = (noise.start + n - 1) / ROW - first + 1;
    for (i64 part = team_number<1>(); part < rows * PARTS; part += team_count<1>()) {
        i64 row = first + part / PARTS, column = 4 * (part % PARTS);
        u32 words[4][4];
        for (int u = 0; u < 4; ++u) philox(noise, u64(row * ROW_BLOCKS + column + u), words[u]);
        for (int eighth = 0; eighth < EIGHTHS; ++eighth) {
            u32 fractions[4];
            for (int u = 0; u < 4; ++u)
                fractions[u] = fraction_of(words[u][eighth / 2], eighth % 2);
            i64 i = row * ROW + eighth * (ROW / EIGHTHS) + column - noise.start;
            if (i >= 0 && i + 4 <= n) {
                use(i, 4, fractions);
                continue;
            }
            for (int u = 0; u < 4; ++u) {
                u32 one[4] = {fractions[u], 0, 0, 0};
                if (i + u >= 0 && i + u < n) use(i + u, 1, one);
            }
        }
    }
}
