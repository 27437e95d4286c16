// Float32 rounded to 16 bits: to nearest, ties to even.
#pragma once

#include "_values.cuh"

DEVICE u32 narrow_half(float value) {
    u32 bits = __float_as_uint(value), sign = bits >> 16 & 0x8000u, rest = bits & 0x7FFFFFFFu;
    if (rest > 0x7F800000u) return sign | 0x7E00u | (rest >> 13 & 0x3FFu);
    if (rest >= 0x47800000u) return sign | 0x7C00u;  // from 65536 on
    // Below 2**-14 the last place is 2**-24, which is that of float32 between 0.5 and 1.
    if (rest < 0x38800000u)
        return sign | (__float_as_uint(__uint_as_float(rest) + 0.5f) - 0x3F000000u);
    // The exponent's bias differs by 112. What rounds up to 65536 has the bits of infinity.
    return sign | (rest - (112u << 23) + 0xFFFu + (rest >> 13 & 1u)) >> 13;
}

DEVICE u32 narrow_bfloat(float value) {
    u32 bits = __float_as_uint(value);
    if (magnitude_bits(value) > 0x7F800000u) return 0x7FC0u;
    return (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16;
}

DEVICE u32 narrow_bits(float value, int kind) {
    return kind == FLOAT16 ? narrow_half(value) : narrow_bfloat(value);
}
