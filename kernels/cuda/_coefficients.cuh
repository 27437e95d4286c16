// Kept coefficients on the wire, and what they leave behind; see compressa.kernels.dct.
#pragma once

#include "_values.cuh"

constexpr u32 INFINITE = 0x7F800000u;

struct Form {
    int kept, width, place_bytes;  // width: bits of a place; 0 for a bitmap
};

DEVICE u32 bits_below(int bit) { return (1u << bit) - 1u; }

// Place k of a stream.
DEVICE u32 streamed_place(const u8* packed, int k, Form form) {
    int first = k * form.width, byte = first / 8;
    u32 word = packed[byte];
    for (int more = 1; more < 3 && byte + more < form.place_bytes; ++more)
        word |= u32(packed[byte + more]) << 8 * more;
    return word >> first % 8 & bits_below(form.width);
}

// A byte of a stream of places.
template <class Place>
DEVICE u32 streamed_byte(const Place* places, int byte, Form form) {
    int first = 8 * byte / form.width;
    u32 bits = 0;
    for (int k = first; k < form.kept && k * form.width < 8 * byte + 8; ++k)
        bits |= u32(places[k]) << (k - first) * form.width;
    return bits >> (8 * byte - first * form.width) & 255u;
}

// What was not sent: the error; if there is none to speak of, the element if it can be sent later,
// or what was there.
DEVICE float left_behind(float p, float decoded, float back, float before) {
    float error = (p - decoded) * back, whole = p * back;
    return is_finite(error) ? error : fabsf(whole) <= 0x1p121f ? whole : before;
}
