// Whole chunks of a vector; see compressa.kernels.chunks for the arithmetic.
//
// To absorb: a team takes up to 32 elements a thread by accesses of 16 bytes, and lays p in shared
// memory; from there 16 lanes a chunk add up its squares in the written order. A warp takes as many
// whole chunks as go into 1024 elements, a CTA one long chunk, piece by piece. Chunks that fill the
// 1024 elements are held in registers, and the next ones are asked for before these are written.
//
// Which norms are the largest is found by select.cu.

#include "_held.cuh"
#include "_team.cuh"
#include "_values.cuh"

constexpr int EACH = 32;        // elements of a thread's share of shared memory
constexpr int AT_ONCE = 4;      // loads of 16 bytes that are under way together
constexpr int PIECE = 1024;     // elements of a chunk that a warp moves
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
        double sum = norm_of(halved(lane_sum(tile + begin, lane, own, 0.0, add_square)));
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
            sum = lane_sum(tile, int(threadIdx.x), size, sum, add_square);
        }
        sum = halved(sum);
        if (threadIdx.x == 0) norms[c] = norm_of(sum);
    }
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

// `norms`: of those that are chosen. If the first is a NaN, some norm is not finite: none is then.
KERNEL(
    take_chunks, CTA,
    (float* __restrict__ residual, i64 n, u32* __restrict__ chosen,
     const float* __restrict__ norms, i64 count, float* __restrict__ values, i64 chunk,
     bool hold)) {
    const float zeros[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    bool none = norms[0] != norms[0];
    for (i64 team = team_number<WARP>(); team < count * pieces_of(chunk);
         team += team_count<WARP>()) {
        Piece piece = piece_of(team, chunk);
        i64 to = piece.number * chunk + piece.begin, low = n;
        if (!none && !hold) low = i64(chosen[piece.number]) * chunk + piece.begin;
        if (none && piece.begin == 0 && team_thread<WARP>() == 0) chosen[piece.number] = NO_CHUNK;
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
