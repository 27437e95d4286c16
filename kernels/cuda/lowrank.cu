// Low-rank arithmetic; see compressa.kernels.lowrank for the matrices and the order of each sum.
//
// M = x + loss_scale * residual is read once for up to eight vectors, which a thread sums up
// together in registers. More vectors are dealt to neighbouring warps or blocks, which find M in a
// cache.
//
// Wide threads take four columns at a time, where all addresses allow it; narrow ones take one, and
// there are four times as many of them, for matrices that are small or whose rows begin anywhere.

#include "_lowrank.cuh"
#include "_orthonormal.cuh"
#include "_philox.cuh"

constexpr int PANEL = 256;  // rows that are summed up together

static_assert(PANEL == CTA, "each thread fetches the factors of one row");

// A warp takes some rows of a block of columns; a row's lanes are spread over neighbouring threads.
template <int VECTORS, int WIDTH>
DEVICE void left(const Sum& m, const float* q, float* parts, const Shape& shape) {
    constexpr int SHARE = LANES / WIDTH, ROWS = WIDTH == 1 ? 1 : 2, BAND = WARP / SHARE * ROWS;
    constexpr int STEPS = WIDTH == 1 ? 8 : VECTORS == 8 ? 2 : 4;
    i64 groups = group_count<VECTORS>(shape), bands = (shape.rows + BAND - 1) / BAND;
    i64 blocks = (shape.columns + BLOCK - 1) / BLOCK;
    int lane = int(threadIdx.x) % SHARE * WIDTH;
    for (i64 item = team_number<WARP>(); item < groups * bands * blocks;
         item += team_count<WARP>()) {
        i64 low = item / groups / bands * BLOCK;
        i64 first = item / groups % bands * BAND + int(threadIdx.x) % WARP / SHARE;
        int k = shape.first + int(item % groups) * VECTORS, vectors = shape.last - k;
        int size = int(min(i64(BLOCK), shape.columns - low));
        const float* lines = q + k * shape.columns + low;
        Pack<WIDTH> sums[VECTORS][ROWS] = {}, elements[ROWS][STEPS], factors[STEPS];
        for (int i = lane; i < size; i += STEPS * LANES) {
            int there = (size - i + LANES - 1) / LANES;
            for (int row = 0; row < ROWS; ++row) {
                i64 number = first + row * (BAND / ROWS);
                int some = number < shape.rows ? there : 0;
                take(m, number * shape.columns + low + i, LANES, some, elements[row]);
            }
            for (int v = 0; v < VECTORS; ++v) {
                const float* line = lines + v * shape.columns + i;
                for (int s = 0; s < STEPS; ++s)
                    factors[s] = load_pack<WIDTH>(line + s * LANES, s < there && v < vectors);
                for (int row = 0; row < ROWS; ++row)
                    for (int s = 0; s < STEPS; ++s)
                        add_product(sums[v][row], factors[s], elements[row][s]);
            }
        }
        for (int v = 0; v < VECTORS; ++v)
            for (int row = 0; row < ROWS; ++row) {
                float sum = halved<SHARE>(sums[v][row]);
                i64 number = first + row * (BAND / ROWS);
                if (lane == 0 && number < shape.rows && v < vectors)
                    parts[(low / BLOCK * shape.approx_rank + k + v) * shape.rows + number] = sum;
            }
    }
}

// A CTA takes a panel of rows, of so many columns as its threads do.
template <int VECTORS, int WIDTH>
DEVICE void right(
    const Sum& m, const float* p, float* parts, const Shape& shape, Pack<VECTORS>* factors) {
    constexpr int STEPS = WIDTH == 1 ? 8 : 4, STRIP = CTA * WIDTH;
    static_assert(PANEL % STEPS == 0, "no factors are read that are not there");
    i64 groups = group_count<VECTORS>(shape), strips = (shape.columns + STRIP - 1) / STRIP;
    i64 panels = (shape.rows + PANEL - 1) / PANEL;
    for (i64 item = blockIdx.x; item < groups * strips * panels; item += gridDim.x) {
        i64 panel = item / groups / strips, low = panel * PANEL;
        i64 column = item / groups % strips * STRIP + i64(threadIdx.x) * WIDTH;
        int k = shape.first + int(item % groups) * VECTORS, vectors = shape.last - k;
        int size = int(min(i64(PANEL), shape.rows - low));
        Pack<VECTORS> own;
        for (int v = 0; v < VECTORS; ++v) {
            bool there = v < vectors && int(threadIdx.x) < size;
            own.of[v] = there ? p[(k + v) * shape.rows + low + threadIdx.x] : 0.0f;
        }
        __syncthreads();  // until the last ones are read by all
        factors[threadIdx.x] = own;
        __syncthreads();
        Pack<WIDTH> sums[VECTORS] = {}, elements[STEPS];
        for (int i = 0; i < size; i += STEPS) {
            int some = column < shape.columns ? size - i : 0;
            take(m, (low + i) * shape.columns + column, shape.columns, some, elements);
            for (int s = 0; s < STEPS; ++s) {
                Pack<VECTORS> factor = factors[i + s];
                for (int v = 0; v < VECTORS; ++v) add_scaled(sums[v], factor.of[v], elements[s]);
            }
        }
        for (int v = 0; v < VECTORS; ++v) {
            i64 line = (panel * shape.approx_rank + k + v) * shape.columns;
            store_pack(parts + line + column, sums[v], v < vectors && column < shape.columns);
        }
    }
}

#define FACTORS(VECTORS)                                                                         \
    KERNEL(left_##VECTORS##_narrow, CTA, PARAMETERS()) {                                         \
        left<VECTORS, 1>({x, residual, loss_scale}, factor, parts, SHAPE);                       \
    }                                                                                            \
    KERNEL(left_##VECTORS##_wide, CTA, PARAMETERS()) {                                           \
        Sum m = {x, residual, loss_scale};                                                       \
        if (are_wide(columns, x, residual, factor)) left<VECTORS, 4>(m, factor, parts, SHAPE);   \
        else left<VECTORS, 1>(m, factor, parts, SHAPE);                                          \
    }                                                                                            \
    KERNEL(right_##VECTORS##_narrow, CTA, PARAMETERS(__restrict__)) {                            \
        __shared__ Pack<VECTORS> factors[PANEL];                                                 \
        right<VECTORS, 1>({x, residual, loss_scale}, factor, parts, SHAPE, factors);             \
    }                                                                                            \
    KERNEL(right_##VECTORS##_wide, CTA, PARAMETERS(__restrict__)) {                              \
        __shared__ Pack<VECTORS> factors[PANEL];                                                 \
        Sum m = {x, residual, loss_scale};                                                       \
        if (are_wide(columns, x, residual, parts))                                               \
            right<VECTORS, 4>(m, factor, parts, SHAPE, factors);                                 \
        else right<VECTORS, 1>(m, factor, parts, SHAPE, factors);                                \
    }

// A left product does without __restrict__: factors that are asked for earlier take more registers.
#define PARAMETERS(RESTRICT)                                                                     \
    (float* x, const float* RESTRICT residual, float loss_scale, const float* RESTRICT factor,   \
     float* RESTRICT parts, i64 rows, i64 columns, int approx_rank, int first, int last)
#define SHAPE {rows, columns, approx_rank, first, last}

FACTORS(1)
FACTORS(2)
FACTORS(4)
FACTORS(8)

// out = the parts' sum, in order.
KERNEL(
    add_up, CTA, (const float* __restrict__ parts, float* __restrict__ out, i64 n, i64 count)) {
    constexpr int AHEAD = 8;
    for (i64 i = team_number<1>(); i < n; i += team_count<1>()) {
        float sum = 0.0f;
        for (i64 low = 0; low < count; low += AHEAD) {
            float some[AHEAD];
            for (int u = 0; u < AHEAD; ++u)
                some[u] = low + u < count ? parts[(low + u) * n + i] : 0.0f;
            for (int u = 0; u < AHEAD; ++u) sum += some[u];
        }
        out[i] = sum;
    }
}

// Rows that a thread takes of a product: each line of q serves all of them.
constexpr int ROWS = 4;

template <int WIDTH>
struct Tile {
    Pack<WIDTH> rows[ROWS];
};

// p^T q, of some rows and the columns of a pack.
template <int WIDTH>
DEVICE Tile<WIDTH> product(
    const float* p, const float* q, const Shape& shape, i64 row, i64 column) {
    Tile<WIDTH> sum;
    for (int k = 0; k < shape.approx_rank; ++k) {
        Pack<WIDTH> line = load_pack<WIDTH>(q + k * shape.columns + column, true);
        for (int i = 0; i < ROWS; ++i) {
            float factor = p[k * shape.rows + min(row + i, shape.rows - 1)];
            if (k == 0) sum.rows[i] = scaled(factor, line);
            else add_scaled(sum.rows[i], factor, line);
        }
    }
    return sum;
}

// Call use(row, column) for every tile.
template <int WIDTH, class Use>
DEVICE void for_tiles(const Shape& shape, Use use) {
    i64 packs = shape.columns / WIDTH, tiles = (shape.rows + ROWS - 1) / ROWS * packs;
    for (i64 tile = team_number<1>(); tile < tiles; tile += team_count<1>())
        use(tile / packs * ROWS, tile % packs * WIDTH);
}

enum Verdict : u32 { ZERO, ALIVE, SPOILED };

DEVICE bool is_spoiled(const u32* verdicts, int rows) {
    bool spoiled = false;
    for (int k = 0; verdicts && k < rows; ++k) spoiled = spoiled || verdicts[k] == SPOILED;
    return spoiled;
}

template <int WIDTH>
DEVICE Tile<WIDTH> no_product() {
    Tile<WIDTH> tile;
    for (int i = 0; i < ROWS; ++i)
        for (int u = 0; u < WIDTH; ++u) tile.rows[i].of[u] = quiet_nan();
    return tile;
}

template <int WIDTH>
DEVICE void write_product(
    const float* p, const float* q, float* out, const Shape& shape, bool spoiled) {
    for_tiles<WIDTH>(shape, [&](i64 row, i64 column) {
        Tile<WIDTH> tile =
            spoiled ? no_product<WIDTH>() : product<WIDTH>(p, q, shape, row, column);
        for (int i = 0; i < ROWS; ++i)
            store_pack(out + (row + i) * shape.columns + column, tile.rows[i],
                       row + i < shape.rows);
    });
}

template <int WIDTH>
DEVICE void split(
    float* m, const float* p, const float* q, float* residual, const Shape& shape, float back,
    bool held) {
    for_tiles<WIDTH>(shape, [&](i64 row, i64 column) {
        Tile<WIDTH> before, kept, tile;
        for (int i = 0; i < ROWS; ++i) {
            i64 at = (row + i) * shape.columns + column;
            before.rows[i] = load_pack<WIDTH>(m + at, row + i < shape.rows);
            kept.rows[i] = load_pack<WIDTH>(residual + at, held && row + i < shape.rows);
        }
        tile = product<WIDTH>(p, q, shape, row, column);
        for (int i = 0; i < ROWS; ++i) {
            i64 at = (row + i) * shape.columns + column;
            for (int u = 0; u < WIDTH; ++u) {
                float missed = (before.rows[i].of[u] - tile.rows[i].of[u]) * back;
                kept.rows[i].of[u] = held ? kept.rows[i].of[u] + missed : missed;
            }
            store_pack(residual + at, kept.rows[i], row + i < shape.rows);
            store_pack(m + at, tile.rows[i], row + i < shape.rows);
        }
    });
}

KERNEL(
    low_rank_product, CTA,
    (const float* __restrict__ p, const float* __restrict__ q, float* __restrict__ out, i64 rows,
     i64 columns, int approx_rank, const u32* __restrict__ verdicts)) {
    Shape shape = {rows, columns, approx_rank, 0, approx_rank};
    bool spoiled = is_spoiled(verdicts, approx_rank);
    if (are_wide(columns, q, out)) write_product<4>(p, q, out, shape, spoiled);
    else write_product<1>(p, q, out, shape, spoiled);
}

KERNEL(
    split_low_rank, CTA,
    (float* __restrict__ m, const float* __restrict__ p, const float* __restrict__ q,
     float* __restrict__ residual, i64 rows, i64 columns, int approx_rank,
     const u32* __restrict__ verdicts, float back, bool held)) {
    Shape shape = {rows, columns, approx_rank, 0, approx_rank};
    bool spoiled = is_spoiled(verdicts, approx_rank);
    if (spoiled) write_product<1>(p, q, m, shape, spoiled);
    else if (are_wide(columns, m, q, residual)) split<4>(m, p, q, residual, shape, back, held);
    else split<1>(m, p, q, residual, shape, back, held);
}

// A CTA looks at a row.
KERNEL(
    judge_rows, CTA,
    (const float* __restrict__ factor, u32* __restrict__ verdicts, i64 columns, int rows)) {
    constexpr int STEPS = 4;
    for (i64 k = blockIdx.x; k < rows; k += gridDim.x) {
        const float* row = factor + k * columns;
        u32 largest = 0;
        for (i64 low = 4 * i64(threadIdx.x); low < columns; low += 4 * CTA * STEPS) {
            float values[STEPS][4];
            for (int s = 0; s < STEPS; ++s) {
                i64 i = low + 4 * CTA * s;
                load4(row, i, int(max(min(i64(4), columns - i), i64(0))), values[s]);
            }
            for (int s = 0; s < STEPS; ++s)
                for (int u = 0; u < 4; ++u) largest = max(largest, magnitude_bits(values[s][u]));
        }
        largest = team_max<CTA>(largest);
        if (threadIdx.x == 0)
            verdicts[k] = largest >= 0x7F800000u ? SPOILED : largest ? ALIVE : ZERO;
    }
}

// The number in [-1, 1] of an element.
DEVICE float drawn(const Noise& noise, i64 i) {
    u64 element = u64(noise.start + i);
    u32 words[4];
    philox(noise, element / 4, words);
    return float(int(word_of(words, u32(element % 4)) ^ 0x80000000u)) * 0x1p-31f;
}

KERNEL(
    keep_directions, CTA,
    (const float* factor, float* kept, const u32* verdicts, i64 columns, int rows, u32 seed,
     u32 stream, u32 step, u32 parameter, i64 start)) {
    if (is_spoiled(verdicts, rows)) return;
    Noise noise = {seed, stream, step, parameter, start};
    i64 packs = (columns + 3) / 4;
    for (i64 pack = team_number<1>(); pack < rows * packs; pack += team_count<1>()) {
        i64 k = pack / packs, i = pack % packs * 4;
        int count = int(min(i64(4), columns - i));
        float values[4];
        load4(factor + k * columns, i, count, values);
        if (verdicts[k] == ZERO)
            for (int u = 0; u < 4; ++u) values[u] = drawn(noise, k * columns + i + u);
        store4(kept + k * columns, i, count, values);
    }
}

// Rows become orthonormal in two times of three launches.
KERNEL(
    multiply, CTA,
    (const float* __restrict__ p, double* __restrict__ memory, i64 n, int approx_rank)) {
    multiply_rows(p, room_in(memory, approx_rank).parts, n, approx_rank);
}

KERNEL(find, CTA, (double* memory, i64 n, int approx_rank, bool again)) {
    if (blockIdx.x == 0)
        find_combinations(room_in(memory, approx_rank), block_count(n), approx_rank, again);
}

KERNEL(combine, CTA, (float* p, double* memory, i64 n, int approx_rank)) {
    combine_rows(p, room_in(memory, approx_rank).of, n, approx_rank);
}

// All of it by one CTA.
KERNEL(orthonormalize, CTA, (float* p, double* memory, i64 n, int approx_rank)) {
    Room room = room_in(memory, approx_rank);
    for (int time = 0; time < 2 && blockIdx.x == 0; ++time) {
        multiply_rows(p, room.parts, n, approx_rank);
        __syncthreads();
        find_combinations(room, block_count(n), approx_rank, time == 1);
        combine_rows(p, room.of, n, approx_rank);
        __syncthreads();
    }
}
