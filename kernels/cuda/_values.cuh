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

// Whether fours that begin at a multiple of four can be read by one access.
DEVICE bool is_even(Values x) { return is_aligned(x.bits, x.kind == FLOAT32 ? 16 : 8); }

DEVICE float load(Values x, i64 i) {
    if (x.kind == FLOAT32) return static_cast<const float*>(x.bits)[i];
    return widen(static_cast<const u16*>(x.bits)[i], x.kind);
}

template <class T>
struct alignas(4 * sizeof(T)) Four {
    T of[4];
};

// `count` elements from i on, at most four; zeros in the place of those that lack. EVEN: fours are
// known to lie at addresses that allow one access.
template <bool EVEN = false, class T>
DEVICE void load4(const T* x, i64 i, int count, T (&values)[4]) {
    if (count >= 4 && (EVEN || is_aligned(x + i, sizeof(Four<T>)))) {
        Four<T> four = *reinterpret_cast<const Four<T>*>(x + i);
        for (int u = 0; u < 4; ++u) values[u] = four.of[u];
        return;
    }
    for (int u = 0; u < 4; ++u) values[u] = u < count ? x[i + u] : T(0);
}

// As they lie in memory: four words, or two with two halves each.
template <bool EVEN = false>
DEVICE void load_raw4(Values x, i64 i, int count, u32 (&raw)[4]) {
    if (x.kind == FLOAT32)
        return load4<EVEN>(static_cast<const u32*>(x.bits), i, count, raw);
    const u16* halves = static_cast<const u16*>(x.bits) + i;
    if (count >= 4 && (EVEN || is_aligned(halves, 8))) {
        uint2 two = *reinterpret_cast<const uint2*>(halves);
        raw[0] = two.x, raw[1] = two.y;
        return;
    }
    u16 some[4];
    for (int u = 0; u < 4; ++u) some[u] = u < count ? halves[u] : u16(0);
    raw[0] = some[0] | u32(some[1]) << 16, raw[1] = some[2] | u32(some[3]) << 16;
}

DEVICE void widen_raw4(const u32 (&raw)[4], int kind, float (&values)[4]) {
    if (kind == FLOAT32) {
        for (int u = 0; u < 4; ++u) values[u] = __uint_as_float(raw[u]);
        return;
    }
    values[0] = widen(raw[0] & 0xFFFFu, kind), values[1] = widen(raw[0] >> 16, kind);
    values[2] = widen(raw[1] & 0xFFFFu, kind), values[3] = widen(raw[1] >> 16, kind);
}

template <bool EVEN = false>
DEVICE void load4(Values x, i64 i, int count, float (&values)[4]) {
    u32 raw[4];
    load_raw4<EVEN>(x, i, count, raw);
    widen_raw4(raw, x.kind, values);
}

template <bool EVEN = false, class T>
DEVICE void store4(T* out, i64 i, int count, const T (&values)[4]) {
    if (count >= 4 && (EVEN || is_aligned(out + i, sizeof(Four<T>)))) {
        Four<T> four;
        for (int u = 0; u < 4; ++u) four.of[u] = values[u];
        *reinterpret_cast<Four<T>*>(out + i) = four;
        return;
    }
    for (int u = 0; u < 4; ++u)
        if (u < count) out[i + u] = values[u];
}

// Four bytes of a word, the lowest first.
template <bool EVEN = false>
DEVICE void store4(u8* out, i64 i, int count, u32 word) {
    if (count >= 4 && (EVEN || is_aligned(out + i, 4))) {
        *reinterpret_cast<u32*>(out + i) = word;
        return;
    }
    for (int u = 0; u < 4; ++u)
        if (u < count) out[i + u] = u8(word >> 8 * u);
}

template <bool EVEN = false>
DEVICE u32 load4(const u8* bytes, i64 i, int count) {
    if (count >= 4 && (EVEN || is_aligned(bytes + i, 4)))
        return *reinterpret_cast<const u32*>(bytes + i);
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

// Four from i on, and four from each further step on, as they lie in memory: all are asked for
// before any is waited for.
template <bool EVEN, int TIMES>
DEVICE void ask_raw(Values x, i64 i, int count, int step, u32 (&raw)[TIMES][4]) {
    if (x.kind == FLOAT32) {
        UNROLLED for (int t = 0; t < TIMES; ++t)
            load_raw4<EVEN>({x.bits, FLOAT32}, i + t * step, count - t * step, raw[t]);
    } else {
        UNROLLED for (int t = 0; t < TIMES; ++t)
            load_raw4<EVEN>({x.bits, FLOAT16}, i + t * step, count - t * step, raw[t]);
    }
}

// p of the same.
template <bool EVEN, int TIMES>
DEVICE void effective_fours(
    Values x, Feedback feedback, i64 i, int count, int step, float (&p)[TIMES][4]) {
    u32 raw[TIMES][4];
    float left[TIMES][4] = {};
    ask_raw<EVEN>(x, i, count, step, raw);
    if (feedback.residual) {
        UNROLLED for (int t = 0; t < TIMES; ++t)
            load4<EVEN>(feedback.residual, i + t * step, count - t * step, left[t]);
    }
    UNROLLED for (int t = 0; t < TIMES; ++t) {
        widen_raw4(raw[t], x.kind, p[t]);
        if (!feedback.residual) continue;
        for (int u = 0; u < 4; ++u) p[t][u] = p[t][u] + feedback.loss_scale * left[t][u];
    }
}

// values = weight * decoded, or values += that, the product rounded first.
DEVICE void put_or_add(float (&values)[4], const float (&decoded)[4], float weight, bool add) {
    for (int u = 0; u < 4; ++u) {
        float product = weight * decoded[u];
        values[u] = add ? values[u] + product : product;
    }
}

// The same for four of out, which are asked for before decode(values) begins.
template <bool EVEN = false, class Decode>
DEVICE void combine4(float* out, i64 i, int count, float weight, bool add, Decode decode) {
    float values[4] = {0.0f, 0.0f, 0.0f, 0.0f}, decoded[4];
    if (add) load4<EVEN>(out, i, count, values);
    decode(decoded);
    put_or_add(values, decoded, weight, add);
    store4<EVEN>(out, i, count, values);
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
