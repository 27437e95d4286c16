// Whole chunks of a vector; see compressa.kernels.chunks for the arithmetic.
//
// To absorb: a team takes up to 32 elements a thread by accesses of 16 bytes, and lays p in shared
// memory; from there 16 lanes a chunk add up its squares in the written order. A warp takes as many
// whole chunks as go into 1024 elements, a CTA one long chunk, piece by piece. Chunks that fill the
// 1024 elements are held in registers, and the next ones are asked for before these are written.
//
// To choose: one CTA finds the k-th largest norm digit by digit, from the highest one on.

#include "_held.cuh"
#include "_scan.cuh"
#include "_team.cuh"
#include "_values.cuh"

constexpr int EACH = 32;        // elements of a thread's share of shared memory
constexpr int AT_ONCE = 4;      // loads of 16 bytes that are under way together
constexpr int PIECE = 1024;     // elements of a chunk that a warp moves
constexpr int WARPS = CTA / WARP;
constexpr u32 BELOW_INFINITY = 0x7F800000u;
constexpr u32 NO_CHUNK = 0xFFFFFFFFu;

struct Source {
    float *x, *residual;
    float back;
    bool clear;
    float largest;
};

// The new p of an element of the residual; where it is too large, a NaN, and the element stays.
DEVICE float taken_up(const Source& from, float now, float& left) {
    float p = left + now * from.back;
    bool accepted = fabsf(p) <= from.largest;
    left = accepted ? p : left;
    return accepted ? p : quiet_nan();
}

// `size` elements from `low` on: p to the tile and the residual. EVEN: at addresses that allow
// vectors, as all chunks are.
template <int THREADS, bool EVEN>
DEVICE void absorb_fours(const Source& from, i64 low, int size, float* tile) {
    constexpr int ROW = 4 * THREADS;
    const float zeros[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (int first = 4 * team_thread<THREADS>(); first < size; first += AT_ONCE * ROW) {
        float now[AT_ONCE][4], left[AT_ONCE][4];
        for (int u = 0; u < AT_ONCE; ++u) {
            int i = first + u * ROW;
            load4<EVEN>(from.x, low + i, size - i, now[u]);
            load4<EVEN>(from.residual, low + i, size - i, left[u]);
        }
        for (int u = 0; u < AT_ONCE; ++u) {
            int i = first + u * ROW;
            float p[4];
            for (int e = 0; e < 4; ++e) p[e] = taken_up(from, now[u][e], left[u][e]);
            store4(tile, i, size - i, p);
            store4<EVEN>(from.residual, low + i, size - i, left[u]);
            if (from.clear) store4<EVEN>(from.x, low + i, size - i, zeros);
        }
    }
}

template <int THREADS>
DEVICE void absorb_tile(const Source& from, bool even, i64 low, int size, float* tile) {
    team_sync<THREADS>();  // until the tile before is read by all
    if (even) absorb_fours<THREADS, true>(from, low, size, tile);
    else absorb_fours<THREADS, false>(from, low, size, tile);
    team_sync<THREADS>();
}

DEVICE bool are_even(const Source& from, i64 chunk) {
    return chunk % 4 == 0 && is_aligned(from.x, 16) && is_aligned(from.residual, 16);
}

// The NaN of the specification in the low of any other.
DEVICE double norm_of(double sum) { return sum == sum ? sum : double(quiet_nan()); }

// Of the chunks in a warp's tile, whose norms go from `norms` on: each half of the warp sums one.
DEVICE void sum_chunks(const float* tile, int size, int chunk, double* norms) {
    int half = int(threadIdx.x) % WARP / LANES, lane = int(threadIdx.x) % LANES;
    for (int two = 0; two * chunk < size; two += 2) {
        int begin = (two + half) * chunk, own = min(chunk, size - begin);
        double sum = norm_of(halved(lane_sum(tile + begin, lane, own, 0.0, square)));
        if (own > 0 && lane == 0) norms[two + half] = sum;
    }
}

using Tile = Held<WARP * EACH, 1>;

// The tiles of as many whole chunks as go in, from the one that begins at chunk c on, those of all
// warps of the launch.
RARE void absorb_others(Source from, double* norms, i64 n, i64 chunk, i64 c, float* tile) {
    int together = Tile::BLOCK / int(chunk);
    bool even = are_even(from, chunk);
    for (c += team_number<WARP>() * together; c * chunk < n; c += team_count<WARP>() * together) {
        int size = int(min(i64(together) * chunk, n - c * chunk));
        absorb_tile<WARP>(from, even, c * chunk, size, tile);
        sum_chunks(tile, size, int(chunk), norms + c);
    }
}

CROWDED(
    absorb_by_warps, CTA, Tile::CTAS,
    (float* __restrict__ x, float* __restrict__ residual, double* __restrict__ norms, i64 n,
     i64 chunk, float back, bool clear, float largest)) {
    const float zeros[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    float* tile = team_stage<WARP, EACH>();
    Source from = {x, residual, back, clear, largest};
    int together = Tile::BLOCK / int(chunk);
    bool even = are_even(from, chunk) && together * chunk == Tile::BLOCK;
    i64 whole = whole_blocks(n, even, Tile::TEAMS, Tile::BLOCK);
    auto take = [&](const Asked<Tile>& asked, i64 b, auto ask_next) {
        float left[Tile::FOURS][4];
        i64 own = b + int(threadIdx.x) / WARP, low = own * Tile::BLOCK;
        __syncwarp();  // until the tile before is read by all
        UNROLLED for (int g = 0; g < Tile::FOURS; ++g) {
            float p[4];
            for (int u = 0; u < 4; ++u) {
                left[g][u] = asked.left[g][u];
                p[u] = taken_up(from, __uint_as_float(asked.x[g][u]), left[g][u]);
            }
            store4<true>(tile, four_at<Tile>(0, g), 4, p);
        }
        ask_next();
        leave_held<Tile>(residual, low, left);
        if (clear) {
            UNROLLED for (int g = 0; g < Tile::FOURS; ++g)
                store4<true>(x, four_at<Tile>(low, g), 4, zeros);
        }
        __syncwarp();
        sum_chunks(tile, Tile::BLOCK, int(chunk), norms + own * together);
    };
    for_held<Tile>({x, FLOAT32}, residual, whole, take);
    if (whole * Tile::BLOCK < n)
        absorb_others(from, norms, n, chunk, whole * together, tile);
}

KERNEL(
    absorb_by_ctas, CTA,
    (float* __restrict__ x, float* __restrict__ residual, double* __restrict__ norms, i64 n,
     i64 chunk, float back, bool clear, float largest)) {
    constexpr int TILE = CTA * EACH;
    float* tile = team_stage<CTA, EACH>();
    Source from = {x, residual, back, clear, largest};
    bool even = are_even(from, chunk);
    i64 chunks = (n + chunk - 1) / chunk;
    for (i64 c = blockIdx.x; c < chunks; c += gridDim.x) {
        i64 low = c * chunk, high = min(low + chunk, n);
        double sum = 0.0;
        for (; low < high; low += TILE) {
            int size = int(min(i64(TILE), high - low));
            absorb_tile<CTA>(from, even, low, size, tile);
            sum = lane_sum(tile, int(threadIdx.x), size, sum, square);
        }
        sum = halved(sum);
        if (threadIdx.x == 0) norms[c] = norm_of(sum);
    }
}

// ---- choosing ----------------------------------------------------------------------------------

// Bits 30 to 0 of a norm, in three digits.
constexpr int DIGITS = 3, MOST_BINS = 2048;

DEVICE int digit_shift(int digit) { return digit == 0 ? 20 : digit == 1 ? 10 : 0; }

DEVICE int digit_bins(int digit) { return digit == 0 ? MOST_BINS : MOST_BINS / 2; }

struct Found {
    u32 bin, above;  // `above` are in higher bins
};

// The highest bin with which at least `wanted` (one or more) are in it or above; all threads of the
// CTA. Thread 0 has the highest bins.
DEVICE Found bin_of(const u32* counts, int bins, u32 wanted) {
    __shared__ Found found;
    int own = bins / CTA, first = bins - 1 - int(threadIdx.x) * own;
    u32 sum = 0;
    for (int i = 0; i < own; ++i) sum += counts[first - i];
    u32 above = cta_scan(sum).before;
    if (above < wanted && wanted <= above + sum) {
        int bin = first;
        for (; above + counts[bin] < wanted; --bin) above += counts[bin];
        found = {u32(bin), above};
    }
    __syncthreads();
    return found;
}

// How many norms, whose higher digits are those of `known`, have each value of a digit. What lacks
// in the last four counts as zeros: they come after all others, so no rank from the top changes.
DEVICE void count_digits(const float* norms, i64 size, u32 known, int digit, u32* counts) {
    __syncthreads();
    for (int bin = threadIdx.x; bin < MOST_BINS; bin += CTA) counts[bin] = 0;
    __syncthreads();
    int shift = digit_shift(digit);
    u32 mask = u32(digit_bins(digit) - 1);
    u32 higher = digit == 0 ? 0u : ~((mask << shift) | ((1u << shift) - 1u));
    for (i64 first = 4 * i64(threadIdx.x); first < size; first += 4 * AT_ONCE * CTA) {
        float norm[AT_ONCE][4];
        for (int u = 0; u < AT_ONCE; ++u) {
            i64 i = first + 4 * CTA * u;
            load4(norms, i, int(min(i64(4), size - i)), norm[u]);
        }
        for (int u = 0; u < AT_ONCE; ++u)
            for (int e = 0; e < 4; ++e) {
                u32 bits = magnitude_bits(norm[u][e]);
                if ((bits & higher) == known) atomicAdd(&counts[bits >> shift & mask], 1u);
            }
    }
    __syncthreads();
}

struct Cut {
    u32 bits;  // of the k-th largest norm
    u32 ties;  // norms just as large that are chosen
};

DEVICE u32 sum_of_warp(u32 value) {
    for (int step = WARP / 2; step; step /= 2) value += __shfl_xor_sync(WHOLE_WARP, value, step);
    return value;
}

// Write the numbers of what is above the cut, and of the first ties, in order. Each warp has a part
// of the norms: it counts what is there, and then knows where its own numbers go.
DEVICE void list_chosen(const float* norms, i64 size, Cut cut, u32* chosen) {
    __shared__ u32 above[WARPS], equal[WARPS];
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    i64 rows = (size + WARP - 1) / WARP, part = (rows + WARPS - 1) / WARPS * WARP;
    i64 low = min(size, warp * part), high = min(size, low + part);
    u32 larger = 0, alike = 0;
    for (i64 i = low + 4 * lane; i < high; i += 4 * WARP) {
        float norm[4];
        load4(norms, i, int(min(i64(4), high - i)), norm);
        for (int e = 0; e < 4; ++e) {
            u32 bits = magnitude_bits(norm[e]);
            larger += i + e < high && bits > cut.bits;
            alike += i + e < high && bits == cut.bits;
        }
    }
    larger = sum_of_warp(larger), alike = sum_of_warp(alike);
    if (lane == 0) above[warp] = larger, equal[warp] = alike;
    __syncthreads();
    u32 at = 0, ties = 0;
    for (int before = 0; before < warp; ++before) at += above[before], ties += equal[before];
    at += min(ties, cut.ties);
    u32 earlier = (1u << lane) - 1u;
    for (i64 first = low; first < high; first += WARP) {
        i64 i = first + lane;
        u32 bits = i < high ? magnitude_bits(norms[i]) : 0u;
        bool same = i < high && bits == cut.bits;
        u32 all_same = __ballot_sync(WHOLE_WARP, same);
        bool taken = i < high && bits > cut.bits;
        taken = taken || (same && ties + u32(__popc(all_same & earlier)) < cut.ties);
        u32 all_taken = __ballot_sync(WHOLE_WARP, taken);
        if (taken) chosen[at + u32(__popc(all_taken & earlier))] = u32(i);
        at += u32(__popc(all_taken)), ties += u32(__popc(all_same));
    }
}

// For one CTA. Nothing is chosen unless all norms are finite.
KERNEL(choose_chunks, CTA, (const float* norms, i64 size, u32* chosen, i64 most)) {
    __shared__ u32 counts[MOST_BINS];
    Cut cut = {0u, u32(most)};
    for (int digit = 0; digit < DIGITS; ++digit) {
        count_digits(norms, size, cut.bits, digit, counts);
        if (digit == 0) {
            u32 infinite = 0;
            for (u32 bin = BELOW_INFINITY >> digit_shift(0); bin < MOST_BINS; ++bin)
                infinite += counts[bin];
            if (infinite)
                for (i64 i = threadIdx.x; i < most; i += CTA) chosen[i] = NO_CHUNK;
            if (infinite || most == 0) return;
        }
        Found found = bin_of(counts, digit_bins(digit), cut.ties);
        cut = {cut.bits | found.bin << digit_shift(digit), cut.ties - found.above};
    }
    list_chosen(norms, size, cut, chosen);
}

// ---- moving ------------------------------------------------------------------------------------

struct Piece {
    i64 number;  // of the chunk's, among those that are chosen
    i64 begin;   // where it lies in its chunk
    int size;
};

DEVICE i64 pieces_of(i64 chunk) { return (chunk + PIECE - 1) / PIECE; }

DEVICE Piece piece_of(i64 team, i64 chunk) {
    i64 each = pieces_of(chunk), number = team / each, begin = (team - number * each) * PIECE;
    return {number, begin, int(min(i64(PIECE), chunk - begin))};
}

// How much of a piece that lies at `low` there is: the last chunk may be short, and a number may
// be no chunk's.
DEVICE int existing(i64 low, i64 n, Piece piece) {
    return int(max(i64(0), min(i64(piece.size), n - low)));
}

KERNEL(
    take_chunks, CTA,
    (float* __restrict__ residual, i64 n, const u32* __restrict__ chosen, i64 count,
     float* __restrict__ values, i64 chunk, bool hold)) {
    const float zeros[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (i64 team = team_number<WARP>(); team < count * pieces_of(chunk);
         team += team_count<WARP>()) {
        Piece piece = piece_of(team, chunk);
        i64 to = piece.number * chunk + piece.begin;
        i64 low = hold ? n : i64(chosen[piece.number]) * chunk + piece.begin;
        int there = existing(low, n, piece);
        for (int i = 4 * team_thread<WARP>(); i < piece.size; i += 4 * WARP) {
            float moved[4];
            load4(residual, low + i, there - i, moved);
            store4(values, to + i, piece.size - i, moved);
            store4(residual, low + i, there - i, zeros);
        }
    }
}

// By all threads; rare, so the grid is the one for the chunks.
DEVICE void fill_with_nan(float* out, i64 n) {
    const float nans[4] = {quiet_nan(), quiet_nan(), quiet_nan(), quiet_nan()};
    for (i64 i = 4 * team_number<1>(); i < n; i += 4 * team_count<1>())
        store4(out, i, int(min(i64(4), n - i)), nans);
}

KERNEL(
    add_chunks, CTA,
    (const float* __restrict__ values, const u32* __restrict__ chosen, i64 count,
     float* __restrict__ out, i64 n, i64 chunk, float weight, bool or_nan)) {
    if (or_nan && i64(chosen[count - 1]) * chunk >= n) return fill_with_nan(out, n);
    for (i64 team = team_number<WARP>(); team < count * pieces_of(chunk);
         team += team_count<WARP>()) {
        Piece piece = piece_of(team, chunk);
        i64 from = piece.number * chunk + piece.begin;
        i64 low = i64(chosen[piece.number]) * chunk + piece.begin;
        int there = existing(low, n, piece);
        for (int i = 4 * team_thread<WARP>(); i < there; i += 4 * WARP) {
            combine4(out, low + i, there - i, weight, true, [&](float (&value)[4]) {
                load4(values, from + i, there - i, value);
            });
        }
    }
}
