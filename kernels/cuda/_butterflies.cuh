// Tiles of rotated elements: signs, and the transform between registers, lanes and warps.
//
// The written transform adds and subtracts neighbours, and moves what it gets to halves. Left in
// place, that is: butterflies across bit 0 of the element's number, then across bit 1, and so on.
//
// A CTA takes a tile of 4096 elements, of one chunk or several, 16 a thread: first those that
// differ in bits 0, 1, 7 and 8, with bits 2 to 6 in the lane; then, by way of shared memory, those
// that differ in bits 0, 9, 10 and 11. Device memory is read once and written once. Longer chunks
// go through memory once more: tiles of them first, then the bits from 12 on.
#pragma once

#include "_team.cuh"
#include "_values.cuh"

constexpr int TILE_BITS = 12, TILE = 1 << TILE_BITS;
constexpr int EACH = TILE / CTA;  // elements of a thread
constexpr int LEAST_BITS = 5;     // of a chunk
constexpr int FAR_BITS = 4, FAR = 1 << FAR_BITS;  // tiles of the longest chunk

// ---- chunks and tiles --------------------------------------------------------------------------

// n elements in chunks of 1 << bits; the last one is a chunk of the least power that holds it.
struct Cut {
    i64 n;
    int bits;
};

// A part of whole chunks, or of one, 1 << bits elements each; of them `real` are no padding.
struct Tile {
    i64 first;
    int size, real, bits;
};

DEVICE i64 whole_of(Cut cut) { return cut.n >> cut.bits << cut.bits; }

DEVICE int last_bits(Cut cut) {
    int bits = LEAST_BITS;
    while (1LL << bits < cut.n - whole_of(cut)) ++bits;
    return bits;
}

DEVICE i64 rotated_of(Cut cut) {
    i64 whole = whole_of(cut);
    return whole == cut.n ? whole : whole + (1LL << last_bits(cut));
}

DEVICE i64 tiles_of(i64 size) { return (size + TILE - 1) / TILE; }

DEVICE i64 tile_count(Cut cut) {
    i64 whole = whole_of(cut);
    return tiles_of(whole) + tiles_of(rotated_of(cut) - whole);
}

DEVICE Tile tile_of(Cut cut, i64 number) {
    i64 whole = whole_of(cut), first = number * TILE, end = whole;
    int bits = cut.bits;
    if (first >= whole) {
        first = whole + (number - tiles_of(whole)) * TILE;
        bits = last_bits(cut), end = whole + (1LL << bits);
    }
    int size = int(min(i64(TILE), end - first));
    int real = int(max(i64(0), min(i64(size), cut.n - first)));
    return {first, size, real, bits};
}

// ---- signs -------------------------------------------------------------------------------------

// Whether COUNT elements (2 or 4) from i on, a multiple of that, are negated: a bit each, the
// lowest first. They lie in a chunk of 1 << bits, which begins at a multiple of that. EVEN: four
// words of signs are known to lie where one access reads them.
template <int COUNT, bool EVEN = false>
DEVICE u32 minus_bits(const u32* signs, i64 i, int bits) {
    i64 chunk = i >> bits << bits;
    int within = int(i - chunk), words = 1 << (bits - LEAST_BITS), first = within & (words - 1);
    const u32* own = signs + chunk / 32;
    u32 minus = 0;
    if (COUNT == 4 && words >= 4 && (EVEN || is_aligned(own + first, 16))) {
        uint4 four = *reinterpret_cast<const uint4*>(own + first);
        int bit = within >> (bits - LEAST_BITS);
        return (four.x >> bit & 1u) | (four.y >> bit & 1u) << 1 | (four.z >> bit & 1u) << 2 |
               (four.w >> bit & 1u) << 3;
    }
    for (int u = 0; u < COUNT; ++u) {
        u32 word = own[(within + u) & (words - 1)];
        minus |= (word >> ((within + u) >> (bits - LEAST_BITS)) & 1u) << u;
    }
    return minus;
}

DEVICE float flipped(float value, u32 minus) {
    return __uint_as_float(__float_as_uint(value) ^ minus << 31);
}

// ---- butterflies -------------------------------------------------------------------------------

template <int STEP>
DEVICE void across_registers(float (&v)[EACH]) {
    for (int r = 0; r < EACH; ++r) {
        if (r & STEP) continue;
        float low = v[r], high = v[r + STEP];
        v[r] = low + high, v[r + STEP] = low - high;
    }
}

DEVICE void across_lanes(float (&v)[EACH], int step) {
    u32 upper = (threadIdx.x & u32(step)) != 0;
    for (int r = 0; r < EACH; ++r) {
        float other = __shfl_xor_sync(WHOLE_WARP, v[r], step);
        v[r] = other + flipped(v[r], upper);  // below: low + high; above: low - high
    }
}

// Element of the tile that register r has at first, and after the exchange.
DEVICE int early(int r) {
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    return (r & 3) | lane << 2 | (r >> 2) << 7 | warp << 9;
}

DEVICE int late(int r) { return (r & 1) | int(threadIdx.x) << 1 | (r >> 1) << 9; }

DEVICE void early_stages(float (&v)[EACH], int bits) {
    across_registers<1>(v);
    across_registers<2>(v);
    for (int bit = 2; bit < 7; ++bit)
        if (bit < bits) across_lanes(v, 1 << (bit - 2));
    if (bits > 7) across_registers<4>(v);
    if (bits > 8) across_registers<8>(v);
}

DEVICE void late_stages(float (&v)[EACH], int bits) {
    if (bits > 9) across_registers<2>(v);
    if (bits > 10) across_registers<4>(v);
    if (bits > 11) across_registers<8>(v);
}

// Transform a tile as far as it reaches. The room is free once all threads are through.
DEVICE void transform(float (&v)[EACH], int bits, uint4* room) {
    early_stages(v, bits);
    for (int r = 0; r < EACH; r += 4)
        room[early(r) / 4] = make_uint4(
            __float_as_uint(v[r]), __float_as_uint(v[r + 1]), __float_as_uint(v[r + 2]),
            __float_as_uint(v[r + 3]));
    __syncthreads();
    for (int r = 0; r < EACH; r += 2) {
        uint2 two = reinterpret_cast<const uint2*>(room)[late(r) / 2];
        v[r] = __uint_as_float(two.x), v[r + 1] = __uint_as_float(two.y);
    }
    late_stages(v, bits);
}

// 2 ** -bits
DEVICE float power_below(int bits) { return 1.0f / float(1 << bits); }

// The powers of two that are divided out before (a), and after (b - a).
DEVICE int before(int bits) { return (bits + 1) / 2; }

DEVICE int after(int bits) { return bits / 2; }

DEVICE float reach_of(float norm, int bits, double clip) {
    if (!(norm <= 0x1p100f)) return quiet_nan();
    if (norm < 0x1p-100f) return 0.0f;
    return norm * float(clip / double(1 << before(bits)));
}
