// Casts to 16-bit floats and back; see compressa.kernels.casts for the arithmetic.
//
// Each thread takes four neighbouring elements.

#include "_team.cuh"
#include "_values.cuh"

// To nearest, ties to even.
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

// What stays behind of p, of which `sent` arrives; `before` where p itself is not finite.
DEVICE float kept(float p, float sent, float before, float back) {
    if (is_finite(sent)) return (p - sent) * back;
    return is_finite(p) ? p * back : before;
}

KERNEL(
    narrow, CTA,
    (const float* x, u16* out, int kind, float* residual, float scale, float back, i64 n)) {
    for (i64 i = 4 * team_number<1>(); i < n; i += 4 * team_count<1>()) {
        int count = int(min(i64(4), n - i));
        float p[4], left[4];
        u16 halves[4];
        load4(x, i, count, p);
        if (residual) {
            load4(residual, i, count, left);
            for (int u = 0; u < 4; ++u) p[u] = p[u] + scale * left[u];
        }
        for (int u = 0; u < 4; ++u) halves[u] = u16(narrow_bits(p[u], kind));
        store4(out, i, count, halves);
        if (residual) {
            for (int u = 0; u < 4; ++u) left[u] = kept(p[u], widen(halves[u], kind), left[u], back);
            store4(residual, i, count, left);
        }
    }
}

KERNEL(widened, CTA, (const void* x, int kind, float* out, i64 n, float weight, bool add)) {
    for (i64 i = 4 * team_number<1>(); i < n; i += 4 * team_count<1>()) {
        int count = int(min(i64(4), n - i));
        float values[4];
        load4({x, kind}, i, count, values);
        combine4(out, i, count, values, weight, add);
    }
}
