// Elias-Fano's two parts; see compressa.kernels.elias_fano. The low one is a bit stream, which
// bitpack.cu writes.

#include "_bitmap.cuh"
#include "_values.cuh"

// An index that is too large for the part is left out: who packs without a check may have indices
// whose own check is on its way.
KERNEL(
    set_highs, CTA,
    (const u32* indices, i64 n, int low_bits, u8* high, i64 bits, const u64* refused)) {
    if (refused && *refused) return;
    for (i64 low = team_number<WARP>() * WARP; low < n; low += team_count<WARP>() * WARP) {
        i64 i = low + team_thread<WARP>();
        i64 bit = i < n ? i64(indices[i] >> low_bits) + i : bits;
        set_bit_of_lane(high, bit, bit < bits);
    }
}

template <bool EVEN>
DEVICE void join_all(u32* positions, const u32* lows, int low_bits, i64 n) {
    for (i64 i = 4 * team_number<1>(); i < n; i += 4 * team_count<1>()) {
        int count = int(min(i64(4), n - i));
        u32 four[4], theirs[4] = {0, 0, 0, 0};
        load4<EVEN>(positions, i, count, four);
        if (low_bits) load4<EVEN>(lows, i, count, theirs);
        for (int u = 0; u < 4; ++u) four[u] = (four[u] - u32(i + u)) << low_bits | theirs[u];
        store4<EVEN>(positions, i, count, four);
    }
}

KERNEL(join, CTA, (u32* positions, const u32* lows, int low_bits, i64 n)) {
    bool even = is_aligned(positions, 16) && is_aligned(lows, 16);
    if (even) join_all<true>(positions, lows, low_bits, n);
    else join_all<false>(positions, lows, low_bits, n);
}
