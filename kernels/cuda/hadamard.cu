// Random Hadamard rotations and codes of 4 bits; see compressa.kernels.hadamard for the arithmetic.

#include "_butterflies.cuh"
#include "_codes.cuh"
#include "_philox.cuh"
#include "_team.cuh"
#include "_values.cuh"

constexpr int MOST_CHUNKS = TILE >> LEAST_BITS;
static_assert(TILE <= SPAN, "a tile's random numbers are drawn at once");

// ---- codes -------------------------------------------------------------------------------------

DEVICE float factor_of(float norm, int bits, const Table& table) {
    float reach = reach_of(norm, bits, table.clip), middle = levels_of(table) * 0.5f;
    return reach == 0.0f ? 0.0f : middle / reach;
}

// Two codes to a byte, from one code in each.
template <bool EVEN>
DEVICE void pack(const u32* codes, const Tile& tile, u8* packed) {
    int half = 1 << (tile.bits - 1);
    for (int i = 4 * int(threadIdx.x); i < tile.size / 2; i += 4 * CTA) {
        int low = i + (i & -half);
        u32 word = codes[low / 4] | codes[(low + half) / 4] << 4;
        store4<EVEN>(packed, tile.first / 2 + i, 4, word);
    }
}

// The elements of a tile with their signs, times 2 ** -a.
template <bool EVEN>
DEVICE void load_tile_as(const float* p, const u32* signs, const Tile& tile, float (&v)[EACH]) {
    float factor = power_below(before(tile.bits));
    for (int r = 0; r < EACH; r += 4) {
        int i = early(r);
        float four[4];
        load4<EVEN>(p, tile.first + i, tile.real - i, four);
        u32 minus = i < tile.size ? minus_bits<4, EVEN>(signs, tile.first + i, tile.bits) : 0u;
        for (int u = 0; u < 4; ++u) v[r + u] = flipped(four[u] * factor, minus >> u & 1u);
    }
}

// EVEN for all tiles of a launch, or for none: they begin at multiples of 32 elements.
DEVICE void load_tile(
    const float* p, const u32* signs, const Tile& tile, bool even, float (&v)[EACH]) {
    if (even) load_tile_as<true>(p, signs, tile, v);
    else load_tile_as<false>(p, signs, tile, v);
}

KERNEL(
    rotate_quantize, CTA,
    (const float* __restrict__ p, const float* __restrict__ norms, const u32* __restrict__ signs,
     u8* __restrict__ codes, i64 n, int bits, u64 table_low, u64 table_high, double clip, u32 seed,
     u32 stream, u32 step, u32 parameter, i64 start)) {
    __shared__ uint4 room[TILE / 4];
    __shared__ float factors[MOST_CHUNKS];
    __shared__ u32 cells[CELLS];
    Cut cut = {n, bits};
    Table table = {table_low, table_high, clip};
    Noise noise = {seed, stream, step, parameter, start};
    bool even = is_aligned(p, 16) && is_aligned(signs, 16);
    lay_cells(table, cells);
    i64 tiles = tile_count(cut);
    for (i64 number = blockIdx.x; number < tiles; number += gridDim.x) {
        Tile tile = tile_of(cut, number);
        __syncthreads();  // until the codes of the tile before are packed
        for (int c = threadIdx.x; (c << tile.bits) < tile.size; c += CTA)
            factors[c] = factor_of(norms[(tile.first >> bits) + c], tile.bits, table);
        float v[EACH];
        load_tile(p, signs, tile, even, v);
        transform(v, tile.bits, room);
        Drawn drawn = drawn_for_span(noise, tile.first, tile.size);
        for (int r = 0; r < EACH; r += 2) {
            int i = late(r);
            if (i >= tile.size) continue;
            u32 pair = 0;
            for (int u = 0; u < 2; ++u) {
                float t = v[r + u] * factors[i >> tile.bits] + levels_of(table) * 0.5f;
                u32 fraction = drawn_fraction(drawn, i + u);
                pair |= code_of(t, fraction, cells, levels_of(table)) << 8 * u;
            }
            reinterpret_cast<u16*>(room)[i / 2] = u16(pair);
        }
        __syncthreads();
        const u32* paired = reinterpret_cast<const u32*>(room);
        // The same for all tiles; to keep the answer took a register too many.
        if (is_aligned(codes, 4)) pack<true>(paired, tile, codes);
        else pack<false>(paired, tile, codes);
    }
}

// ---- sums --------------------------------------------------------------------------------------

// Integers of four codes, one in each byte of `four`, written or added.
template <bool EVEN>
DEVICE void add4(u8* sums, i64 i, u32 four, const u32* integers, bool add) {
    u32 old = add ? load4<EVEN>(sums, i, 4) : 0u, word = 0;
    for (int u = 0; u < 4; ++u) {
        u32 integer = integers[four >> 8 * u & 15u] + (old >> 8 * u);
        word |= (integer & 255u) << 8 * u;
    }
    store4<EVEN>(sums, i, 4, word);
}

template <bool EVEN>
DEVICE void add4(u16* sums, i64 i, u32 four, const u32* integers, bool add) {
    u16 sum[4] = {0, 0, 0, 0};
    if (add) load4<EVEN>(sums, i, 4, sum);
    for (int u = 0; u < 4; ++u) sum[u] = u16(sum[u] + integers[four >> 8 * u & 15u]);
    store4<EVEN>(sums, i, 4, sum);
}

template <bool EVEN, class Sum>
DEVICE void add_codes(const u8* codes, Sum* sums, Cut cut, const u32* integers, bool add) {
    i64 whole = whole_of(cut), bytes = rotated_of(cut) / 2;
    int last = last_bits(cut);
    i64 thread = i64(blockIdx.x) * CTA + threadIdx.x;
    for (i64 i = 4 * thread; i < bytes; i += 4 * CTA * i64(gridDim.x)) {
        i64 half = 1LL << ((2 * i < whole ? cut.bits : last) - 1);
        i64 low = i + (i & -half);  // a chunk begins at a multiple of its length
        u32 pairs = load4<EVEN>(codes, i, 4);
        add4<EVEN>(sums, low, pairs & 0x0F0F0F0Fu, integers, add);
        add4<EVEN>(sums, low + half, pairs >> 4 & 0x0F0F0F0Fu, integers, add);
    }
}

template <class Sum>
DEVICE void sum_codes(const u8* codes, Sum* sums, Cut cut, const Table& table, bool add) {
    __shared__ u32 integers[16];
    if (threadIdx.x < 16) integers[threadIdx.x] = entry(table, int(threadIdx.x));
    __syncthreads();
    bool even = is_aligned(codes, 4) && is_aligned(sums, 4 * sizeof(Sum));
    if (even) add_codes<true>(codes, sums, cut, integers, add);
    else add_codes<false>(codes, sums, cut, integers, add);
}

KERNEL(
    sum_codes_8, CTA,
    (const u8* __restrict__ codes, u8* __restrict__ sums, i64 n, int bits, u64 table_low,
     u64 table_high, bool add)) {
    sum_codes(codes, sums, {n, bits}, {table_low, table_high, 0.0}, add);
}

KERNEL(
    sum_codes_16, CTA,
    (const u8* __restrict__ codes, u16* __restrict__ sums, i64 n, int bits, u64 table_low,
     u64 table_high, bool add)) {
    sum_codes(codes, sums, {n, bits}, {table_low, table_high, 0.0}, add);
}

// ---- back --------------------------------------------------------------------------------------

struct Sums {
    const void* of;
    bool wide;  // uint16, not uint8
};

DEVICE bool is_even(Sums sums) { return is_aligned(sums.of, sums.wide ? 8 : 4); }

template <bool EVEN>
DEVICE void load_sums(Sums sums, i64 i, int (&four)[4]) {
    if (!sums.wide) {
        u32 word = load4<EVEN>(static_cast<const u8*>(sums.of), i, 4);
        for (int u = 0; u < 4; ++u) four[u] = int(word >> 8 * u & 255u);
        return;
    }
    u16 wide[4];
    load4<EVEN>(static_cast<const u16*>(sums.of), i, 4, wide);
    for (int u = 0; u < 4; ++u) four[u] = wide[u];
}

struct Decoder {
    int most;  // the largest sum
    double clip;
    float weight;
    bool add;
};

// NaN where the norm is.
DEVICE float unit_of(float norm, int bits, const Decoder& decoder) {
    return reach_of(norm, bits, decoder.clip) / float(decoder.most);
}

template <bool EVEN>
DEVICE void center_tile_as(
    Sums sums, const Tile& tile, const float* units, const Decoder& decoder, float (&v)[EACH]) {
    float factor = power_below(after(tile.bits));
    for (int r = 0; r < EACH; r += 4) {
        int i = early(r), four[4] = {0, 0, 0, 0};
        bool there = i < tile.size;
        if (there) load_sums<EVEN>(sums, tile.first + i, four);
        float unit = there ? units[i >> tile.bits] : 0.0f;
        for (int u = 0; u < 4; ++u)
            v[r + u] = float(2 * four[u] - decoder.most) * unit * factor;
    }
}

DEVICE void center_tile(
    Sums sums, const Tile& tile, const float* units, const Decoder& decoder, bool even,
    float (&v)[EACH]) {
    if (even) center_tile_as<true>(sums, tile, units, decoder, v);
    else center_tile_as<false>(sums, tile, units, decoder, v);
}

DEVICE float delivered(float old, float y, float unit, const Decoder& decoder) {
    if (unit != unit) return decoder.add ? old : quiet_nan();
    float weighted = decoder.weight * y;
    return decoder.add ? old + weighted : weighted;
}

// Two neighbours; `count` of them are there.
template <bool EVEN>
DEVICE void deliver2(
    float* out, i64 i, int count, float first, float second, float unit, const Decoder& decoder) {
    if (count >= 2 && (EVEN || is_aligned(out + i, 8))) {
        uint2* pair = reinterpret_cast<uint2*>(out + i);
        uint2 old = decoder.add ? *pair : make_uint2(0u, 0u);
        *pair = make_uint2(
            __float_as_uint(delivered(__uint_as_float(old.x), first, unit, decoder)),
            __float_as_uint(delivered(__uint_as_float(old.y), second, unit, decoder)));
        return;
    }
    if (count > 0) out[i] = delivered(decoder.add ? out[i] : 0.0f, first, unit, decoder);
    if (count > 1) out[i + 1] = delivered(decoder.add ? out[i + 1] : 0.0f, second, unit, decoder);
}

template <bool EVEN>
DEVICE void deliver_tile(
    const float (&v)[EACH], const Tile& tile, const u32* signs, const float* units, float* out,
    const Decoder& decoder) {
    for (int r = 0; r < EACH; r += 2) {
        int i = late(r);
        if (i >= tile.real) continue;
        u32 minus = minus_bits<2>(signs, tile.first + i, tile.bits);
        float unit = units[i >> tile.bits];
        float first = flipped(v[r], minus & 1u), second = flipped(v[r + 1], minus >> 1);
        deliver2<EVEN>(out, tile.first + i, tile.real - i, first, second, unit, decoder);
    }
}

KERNEL(
    rotate_back, CTA,
    (const void* __restrict__ sums, bool wide, const float* __restrict__ norms,
     const u32* __restrict__ signs, float* __restrict__ out, i64 n, int bits, int most,
     double clip, float weight, bool add)) {
    __shared__ uint4 room[TILE / 4];
    __shared__ float units[MOST_CHUNKS];
    Cut cut = {n, bits};
    Decoder decoder = {most, clip, weight, add};
    bool even = is_even(Sums{sums, wide}) && is_aligned(out, 8);
    i64 tiles = tile_count(cut);
    for (i64 number = blockIdx.x; number < tiles; number += gridDim.x) {
        Tile tile = tile_of(cut, number);
        __syncthreads();  // until the units of the tile before are used
        for (int c = threadIdx.x; (c << tile.bits) < tile.size; c += CTA)
            units[c] = unit_of(norms[(tile.first >> bits) + c], tile.bits, decoder);
        __syncthreads();
        float v[EACH];
        center_tile({sums, wide}, tile, units, decoder, even, v);
        transform(v, tile.bits, room);
        if (even) deliver_tile<true>(v, tile, signs, units, out, decoder);
        else deliver_tile<false>(v, tile, signs, units, out, decoder);
    }
}

// ---- chunks longer than a tile -----------------------------------------------------------------
//
// All chunks have 1 << bits elements here, but for padding after the last element.

DEVICE void store_tile(const Tile& tile, const float (&v)[EACH], float* half_way) {
    for (int r = 0; r < EACH; r += 2)
        reinterpret_cast<uint2*>(half_way)[(tile.first + late(r)) / 2] =
            make_uint2(__float_as_uint(v[r]), __float_as_uint(v[r + 1]));
}

KERNEL(
    rotate_tiles, CTA,
    (const float* __restrict__ p, const u32* __restrict__ signs, float* __restrict__ half_way,
     i64 n, int bits)) {
    __shared__ uint4 room[TILE / 4];
    Cut cut = {n, bits};
    bool even = is_aligned(p, 16) && is_aligned(signs, 16);
    i64 tiles = tile_count(cut);
    for (i64 number = blockIdx.x; number < tiles; number += gridDim.x) {
        Tile tile = tile_of(cut, number);
        __syncthreads();  // until the tile before is through
        float v[EACH];
        load_tile(p, signs, tile, even, v);
        transform(v, tile.bits, room);
        store_tile(tile, v, half_way);
    }
}

KERNEL(
    rotate_tiles_back, CTA,
    (const void* __restrict__ sums, bool wide, const float* __restrict__ norms,
     float* __restrict__ half_way, i64 n, int bits, int most, double clip)) {
    __shared__ uint4 room[TILE / 4];
    Cut cut = {n, bits};
    Decoder decoder = {most, clip, 1.0f, false};
    bool even = is_even(Sums{sums, wide});
    i64 tiles = tile_count(cut);
    for (i64 number = blockIdx.x; number < tiles; number += gridDim.x) {
        Tile tile = tile_of(cut, number);
        __syncthreads();  // until the tile before is through
        float v[EACH], unit = unit_of(norms[tile.first >> bits], bits, decoder);
        center_tile({sums, wide}, tile, &unit, decoder, even, v);
        transform(v, tile.bits, room);
        store_tile(tile, v, half_way);
    }
}

// A thread's elements: the same pair in each of FAR tiles, those of one chunk or of several.
struct Column {
    i64 first;
    int tiles;  // fewer where the chunks end
};

DEVICE i64 column_count(i64 rotated) { return (rotated + FAR * TILE - 1) / (FAR * TILE) * TILE; }

DEVICE Column column_of(i64 number, i64 rotated) {
    i64 first = number / TILE * (FAR * TILE) + number % TILE;
    return {first, int(min(i64(FAR), (rotated - first + TILE - 1) / TILE))};
}

DEVICE void load_column(const float* half_way, Column column, int bits, float (&v)[FAR]) {
    for (int r = 0; r < FAR; ++r)
        v[r] = r < column.tiles ? half_way[column.first + i64(r) * TILE] : 0.0f;
    across_registers<1>(v);
    if (bits > TILE_BITS + 1) across_registers<2>(v);
    if (bits > TILE_BITS + 2) across_registers<4>(v);
    if (bits > TILE_BITS + 3) across_registers<8>(v);
}

KERNEL(
    quantize_columns, CTA,
    (const float* __restrict__ half_way, i64 rotated, const float* __restrict__ norms,
     u8* __restrict__ codes, int bits, u64 table_low, u64 table_high, double clip, u32 seed,
     u32 stream, u32 step, u32 parameter, i64 start)) {
    static_assert(FAR == EACH, "they share their butterflies");
    __shared__ u32 cells[CELLS];
    Table table = {table_low, table_high, clip};
    Noise noise = {seed, stream, step, parameter, start};
    lay_cells(table, cells);
    __syncthreads();
    i64 columns = column_count(rotated);
    for (i64 c = i64(blockIdx.x) * CTA + threadIdx.x; c < columns; c += i64(gridDim.x) * CTA) {
        Column column = column_of(c, rotated);
        float v[FAR];
        load_column(half_way, column, bits, v);
        u64 all = 0;
        for (int r = 0; r < FAR; ++r) {
            if (r >= column.tiles) continue;
            i64 i = column.first + i64(r) * TILE;
            float t = v[r] * factor_of(norms[i >> bits], bits, table) + levels_of(table) * 0.5f;
            u64 code = code_of(t, random_fraction(noise, i), cells, levels_of(table));
            all |= code << 4 * r;
        }
        int half = 1 << (bits - 1 - TILE_BITS);  // tiles from an element to the one it shares with
        for (int r = 0; r < column.tiles; ++r) {
            if (r & half) continue;
            i64 i = column.first + i64(r) * TILE, chunk = i >> bits << bits;
            u64 low = all >> 4 * r & 15u, high = all >> 4 * (r + half) & 15u;
            codes[chunk / 2 + (i - chunk)] = u8(low | high << 4);
        }
    }
}

KERNEL(
    deliver_columns, CTA,
    (const float* __restrict__ half_way, i64 rotated, const float* __restrict__ norms,
     const u32* __restrict__ signs, float* __restrict__ out, i64 n, int bits, int most,
     double clip, float weight, bool add)) {
    Decoder decoder = {most, clip, weight, add};
    i64 columns = column_count(rotated);
    for (i64 c = i64(blockIdx.x) * CTA + threadIdx.x; c < columns; c += i64(gridDim.x) * CTA) {
        Column column = column_of(c, rotated);
        float v[FAR];
        load_column(half_way, column, bits, v);
        for (int r = 0; r < FAR; ++r) {
            i64 i = column.first + i64(r) * TILE;
            if (r >= column.tiles || i >= n) continue;
            i64 chunk = i >> bits << bits;
            int within = int(i - chunk), power = bits - LEAST_BITS;
            u32 word = signs[chunk / 32 + (within & ((1 << power) - 1))];
            u32 minus = word >> (within >> power) & 1u;
            float unit = unit_of(norms[i >> bits], bits, decoder);
            out[i] = delivered(add ? out[i] : 0.0f, flipped(v[r], minus), unit, decoder);
        }
    }
}
