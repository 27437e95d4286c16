// Signs, packed in eight planes: bit j of byte i is element j * width + i, for `width` bytes.
#pragma once

#include "_team.cuh"
#include "_values.cuh"

constexpr int PLANES = 8;

DEVICE int sign_width(int size) { return (size + PLANES - 1) / PLANES; }

// The sign's bit for numbers below zero; not for -0.
DEVICE u32 sign_of(float value) {
    u32 bits = __float_as_uint(value);
    return bits > 0x80000000u ? 0x80000000u : 0u;
}

// A team goes through the signs of `size` elements, whose bytes begin at `at`. Four neighbours at a
// time are handed to decode(first, count, signs), the signs in the lowest bits of four bytes; the
// count is below one where a plane ends before its last byte.
template <int THREADS, class Decode>
DEVICE void for_signs(const u8* packed, i64 at, int size, Decode decode) {
    int width = sign_width(size), fours = (width + 3) / 4;
    for (int t = team_thread<THREADS>(); t < PLANES * fours; t += THREADS) {
        int plane = t / fours, i = 4 * (t % fours);
        int some = min(4, width - i), first = plane * width + i;
        u32 signs = load4(packed, at + i, some) >> plane & 0x01010101u;
        decode(first, min(some, size - first), signs);
    }
}

// The sign's bit of one of the four.
DEVICE u32 sign_bit(u32 signs, int u) { return (signs >> 8 * u & 1u) << 31; }
