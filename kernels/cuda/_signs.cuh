// Signs, packed in eight planes: bit j of byte i is element j * width + i, for `width` bytes.
#pragma once

#include "_team.cuh"
#include "_values.cuh"

constexpr int PLANES = 8;

DEVICE int sign_width(int size) { return (size + PLANES - 1) / PLANES; }

// The sign's bit for numbers below zero: neither -0 nor NaN, whose sign differs between processors.
DEVICE u32 sign_of(float value) { return value < 0.0f ? 0x80000000u : 0u; }

// Whether each plane of a block has fours only, which begin at multiples of four.
DEVICE bool has_even_planes(int block) { return block % (4 * PLANES) == 0; }

// A team goes through `size` elements: take(plane, i, some, first, count) gets `some` neighbouring
// bytes from i on, four at most, and the elements that they have in a plane: `count` from `first`
// on. WHOLE: each plane has fours only.
template <int THREADS, bool WHOLE, class Take>
DEVICE void for_planes(int size, Take take) {
    int width = sign_width(size), fours = (width + 3) / 4;
    for (int t = team_thread<THREADS>(); t < PLANES * fours; t += THREADS) {
        int plane = t / fours, i = 4 * (t % fours), some = WHOLE ? 4 : min(4, width - i);
        int first = plane * width + i, count = WHOLE ? 4 : min(some, size - first);
        if (count > 0) take(plane, i, some, first, count);
    }
}

// The sign's bit of one of the four.
DEVICE u32 sign_bit(u32 signs, int u) { return (signs >> 8 * u & 1u) << 31; }
