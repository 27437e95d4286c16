// Floats of eight bits; see compressa.kernels.fp8 for the arithmetic.
//
// A team takes a block: once through for its largest magnitude, and once more, out of the
// first-level cache, for the codes. Rounding adds and takes off again a number so large that the
// sum has no bits below the format's last one.

#include "_sums.cuh"
#include "_team.cuh"
#include "_values.cuh"

struct Format {
    int mantissa, bias;
    float largest;
};

DEVICE float power_of_two(int exponent) { return __uint_as_float(u32(127 + exponent) << 23); }

// |t| to nearest, ties to even, as a number that the format has.
DEVICE float rounded(float t, Format form) {
    u32 least = u32(128 - form.bias) << 23;  // below it, the last place stays where it is
    u32 exponent = max(magnitude_bits(t) & 0x7F800000u, least);
    u32 places = u32(23 - form.mantissa);
    float large = __uint_as_float(exponent + (places << 23));
    float magnitude = __uint_as_float(magnitude_bits(t));
    return min(magnitude + large - large, form.largest);
}

// The exponents' biases differ by 127 - bias; the product is exact, for denormal numbers too.
DEVICE u32 code_of(float rounded, bool negative, Format form) {
    u32 bits = __float_as_uint(rounded * power_of_two(form.bias - 127));
    return bits >> (23 - form.mantissa) | (negative ? 0x80u : 0u);
}

DEVICE float value_of(u32 code, Format form) {
    u32 rest = code & 0x7Fu, fraction = rest & ((1u << form.mantissa) - 1u);
    float magnitude = __uint_as_float(rest << (23 - form.mantissa)) * power_of_two(127 - form.bias);
    if (magnitude > form.largest)  // e4m3 has NaN only; e5m2 has an infinity below it
        magnitude =
            form.mantissa == 2 && fraction == 0u ? __uint_as_float(0x7F800000u) : quiet_nan();
    return code & 0x80u ? -magnitude : magnitude;
}

DEVICE void decode4(u32 word, float scale, Format form, float (&values)[4]) {
    for (int u = 0; u < 4; ++u) values[u] = value_of(word >> 8 * u & 0xFFu, form) * scale;
}

template <int THREADS>
DEVICE float scale_of(Values x, Feedback feedback, i64 low, int size, Format form) {
    u32 most = 0;
    for (int i = 4 * team_thread<THREADS>(); i < size; i += 4 * THREADS) {
        float p[4];
        effective4(x, feedback, low + i, min(4, size - i), p);
        for (int u = 0; u < 4; ++u) most = max(most, magnitude_bits(p[u]));
    }
    float largest = __uint_as_float(team_max<THREADS>(most));
    if (!is_finite(largest)) return quiet_nan();
    return largest == 0.0f ? 0.0f : max(largest / form.largest, 0x1p-126f);
}

template <int THREADS>
DEVICE void quantize(
    Values x, Feedback feedback, u8* codes, float* scales, i64 n, int block, Format form) {
    i64 blocks = (n + block - 1) / block;
    for (i64 b = team_number<THREADS>(); b < blocks; b += team_count<THREADS>()) {
        i64 low = b * block;
        int size = int(min(i64(block), n - low));
        float scale = scale_of<THREADS>(x, feedback, low, size, form);
        bool coded = scale > 0.0f;
        float factor = coded ? 1.0f / scale : 0.0f;
        for (int i = 4 * team_thread<THREADS>(); i < size; i += 4 * THREADS) {
            int count = min(4, size - i);
            u32 word = 0;
            float p[4], left[4];
            effective4(x, feedback, low + i, count, p);
            for (int u = 0; u < 4; ++u) {
                float t = p[u] * factor, v = coded ? rounded(t, form) : 0.0f, sent = v * scale;
                bool negative = coded && __float_as_uint(t) >> 31;
                word |= code_of(v, negative, form) << 8 * u;
                left[u] = (p[u] - (negative ? -sent : sent)) * feedback.back;
            }
            store4(codes, low + i, count, word);
            if (feedback.residual && scale == scale)
                store4(feedback.residual, low + i, count, left);
        }
        if (team_thread<THREADS>() == 0) scales[b] = scale;
    }
}

template <int THREADS>
DEVICE void dequantize(
    const u8* codes, const float* scales, float* out, i64 n, int block, Format form, float weight,
    bool add) {
    i64 blocks = (n + block - 1) / block;
    for (i64 b = team_number<THREADS>(); b < blocks; b += team_count<THREADS>()) {
        i64 low = b * block;
        int size = int(min(i64(block), n - low));
        float scale = scales[b];
        for (int i = 4 * team_thread<THREADS>(); i < size; i += 4 * THREADS) {
            int count = min(4, size - i);
            float values[4];
            decode4(load4(codes, low + i, count), scale, form, values);
            combine4(out, low + i, count, values, weight, add);
        }
    }
}

struct Payloads {
    const u8* codes[MOST];
    const float* scales[MOST];
};

template <int THREADS>
DEVICE void sum(
    const Payloads& payloads, Sums sums, i64 n, int block, Format form, float weight) {
    i64 blocks = (n + block - 1) / block;
    for (i64 b = team_number<THREADS>(); b < blocks; b += team_count<THREADS>()) {
        i64 low = b * block;
        int size = int(min(i64(block), n - low));
        float own[MOST];
        FOR_PAYLOADS(r) own[r] = payloads.codes[r] ? payloads.scales[r][b] : 0.0f;
        for (int i = 4 * team_thread<THREADS>(); i < size; i += 4 * THREADS) {
            int count = min(4, size - i);
            u32 words[MOST];
            float total[4], values[4];
            FOR_PAYLOADS(r) if (payloads.codes[r])
                words[r] = load4(payloads.codes[r], low + i, count);
            begin4(sums, low + i, count, total);
            FOR_PAYLOADS(r) if (payloads.codes[r]) {
                decode4(words[r], own[r], form, values);
                add4(total, values, weight);
            }
            finish4(sums, low + i, count, total);
        }
    }
}

#define QUANTIZE(name, THREADS)                                                                   \
    KERNEL(                                                                                       \
        name, CTA,                                                                                \
        (const void* x, int kind, float* residual, float loss_scale, float back, u8* codes,       \
         float* scales, i64 n, int block, int mantissa, int bias, float largest)) {               \
        quantize<THREADS>(                                                                        \
            {x, kind}, {residual, loss_scale, back}, codes, scales, n, block,                     \
            {mantissa, bias, largest});                                                           \
    }

#define DEQUANTIZE(name, THREADS)                                                                 \
    KERNEL(                                                                                       \
        name, CTA,                                                                                \
        (const u8* codes, const float* scales, float* out, i64 n, int block, int mantissa,        \
         int bias, float largest, float weight, bool add)) {                                      \
        dequantize<THREADS>(                                                                      \
            codes, scales, out, n, block, {mantissa, bias, largest}, weight, add);                \
    }

#define SUM(name, THREADS)                                                                        \
    KERNEL(                                                                                       \
        name, CTA,                                                                                \
        (EACH_OF(const u8*, codes), EACH_OF(const float*, scales), const float* before,           \
         void* out, int kind, i64 n, int block, int mantissa, int bias, float largest,            \
         float weight)) {                                                                         \
        sum<THREADS>(                                                                             \
            {ALL_OF(codes), ALL_OF(scales)}, {before, out, kind}, n, block,                       \
            {mantissa, bias, largest}, weight);                                                   \
    }

QUANTIZE(quantize_by_warps, WARP)
QUANTIZE(quantize_by_ctas, CTA)
DEQUANTIZE(dequantize_by_warps, WARP)
DEQUANTIZE(dequantize_by_ctas, CTA)
SUM(sum_by_warps, WARP)
SUM(sum_by_ctas, CTA)
