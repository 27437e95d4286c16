// Gradients of 32 and 16 bits, four at a time, and the two lines of error feedback.
//
// Addresses that allow it are read and written 16 bytes at once; a view may begin anywhere.
#pragma once

#include "_kernel.cuh"

enum Kind { FLOAT32, FLOAT16, BFLOAT16 };

struct Values {
    const void* bits;
    int kind;
};

// What goes in is p = x + loss_scale * residual; what stays behind is (p - decoded) * back.
struct Feedback {
    float* residual;  // or null
    float loss_scale;
    float back;
};

DEVICE float quiet_nan() { return __uint_as_float(0x7FC00000u); }

DEVICE bool is_finite(float value) { return (__float_as_uint(value) & 0x7F800000u) != 0x7F800000u; }

DEVICE u32 magnitude_bits(float value) { return __float_as_uint(value) & 0x7FFFFFFFu; }

DEVICE float widen_half(u32 half) {
    u32 sign = (half & 0x8000u) << 16, rest = half & 0x7FFFu;
    if (rest >= 0x7C00u) return __uint_as_float(sign | 0x7F800000u | (rest & 0x3FFu) << 13);
    // The exponent's bias differs by 112; the product is exact, for denormal numbers too.
    return __uint_as_float(__float_as_uint(__uint_as_float(rest << 13) * 0x1p112f) | sign);
}

DEVICE float widen(u32 bits, int kind) {
    return kind == FLOAT16 ? widen_half(bits) : __uint_as_float(bits << 16);
}

DEVICE bool is_aligned(const void* address, int bytes) {
    return (reinterpret_cast<u64>(address) & u64(bytes - 1)) == 0;
}

DEVICE float load(Values x, i64 i) {
    if (x.kind == FLOAT32) return static_cast<const float*>(x.bits)[i];
    return widen(static_cast<const u16*>(x.bits)[i], x.kind);
}

template <class T>
struct alignas(4 * sizeof(T)) Four {
    T of[4];
};

// `count` elements from i on, at most four; zeros in the place of those that lack.
template <class T>
DEVICE void load4(const T* x, i64 i, int count, T (&values)[4]) {
    if (count >= 4 && is_aligned(x + i, sizeof(Four<T>))) {
        Four<T> four = *reinterpret_cast<const Four<T>*>(x + i);
        for (int u = 0; u < 4; ++u) values[u] = four.of[u];
        return;
    }
    for (int u = 0; u < 4; ++u) values[u] = u < count ? x[i + u] : T(0);
}

DEVICE void load4(Values x, i64 i, int count, float (&values)[4]) {
    if (x.kind == FLOAT32) return load4(static_cast<const float*>(x.bits), i, count, values);
    const u16* halves = static_cast<const u16*>(x.bits) + i;
    if (count >= 4 && is_aligned(halves, 8)) {
        uint2 two = *reinterpret_cast<const uint2*>(halves);
        values[0] = widen(two.x & 0xFFFFu, x.kind), values[1] = widen(two.x >> 16, x.kind);
        values[2] = widen(two.y & 0xFFFFu, x.kind), values[3] = widen(two.y >> 16, x.kind);
        return;
    }
    for (int u = 0; u < 4; ++u) values[u] = u < count ? widen(halves[u], x.kind) : 0.0f;
}

template <class T>
DEVICE void store4(T* out, i64 i, int count, const T (&values)[4]) {
    if (count >= 4 && is_aligned(out + i, sizeof(Four<T>))) {
        Four<T> four;
        for (int u = 0; u < 4; ++u) four.of[u] = values[u];
        *reinterpret_cast<Four<T>*>(out + i) = four;
        return;
    }
    for (int u = 0; u < 4; ++u)
        if (u < count) out[i + u] = values[u];
}

// Four bytes of a word, the lowest first.
DEVICE void store4(u8* out, i64 i, int count, u32 word) {
    if (count >= 4 && is_aligned(out + i, 4)) {
        *reinterpret_cast<u32*>(out + i) = word;
        return;
    }
    for (int u = 0; u < 4; ++u)
        if (u < count) out[i + u] = u8(word >> 8 * u);
}

DEVICE u32 load4(const u8* bytes, i64 i, int count) {
    if (count >= 4 && is_aligned(bytes + i, 4)) return *reinterpret_cast<const u32*>(bytes + i);
    u32 word = 0;
    for (int u = 0; u < 4; ++u)
        if (u < count) word |= u32(bytes[i + u]) << 8 * u;
    return word;
}

DEVICE float effective(Values x, Feedback feedback, i64 i) {
    float value = load(x, i);
    return feedback.residual ? value + feedback.loss_scale * feedback.residual[i] : value;
}

DEVICE void effective4(Values x, Feedback feedback, i64 i, int count, float (&p)[4]) {
    load4(x, i, count, p);
    if (!feedback.residual) return;
    float left[4];
    load4(feedback.residual, i, count, left);
    for (int u = 0; u < 4; ++u) p[u] = p[u] + feedback.loss_scale * left[u];
}

// out = weight * decoded, or out += that, the product rounded first.
DEVICE void combine4(
    float* out, i64 i, int count, const float (&decoded)[4], float weight, bool add) {
    float values[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    if (add) load4(out, i, count, values);
    for (int u = 0; u < 4; ++u) {
        float product = weight * decoded[u];
        values[u] = add ? values[u] + product : product;
    }
    store4(out, i, count, values);
}

// Float32 rounded to 16 bits: to nearest, ties to even.
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
