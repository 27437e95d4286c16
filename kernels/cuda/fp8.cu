// Floats of eight bits; see compressa.kernels.fp8 for the arithmetic.
//
// A block of any size goes through twice: once for its largest magnitude, and once more, out of the
// first-level cache, for the codes. Blocks of the usual sizes are held in registers. Rounding adds
// and takes off again a number so large that the sum has no bits below the format's last one.

#include "_block_sums.cuh"
#include "_held.cuh"
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

DEVICE float scale_of(u32 most, Format form) {
    float largest = __uint_as_float(most);
    if (!is_finite(largest)) return quiet_nan();
    return largest == 0.0f ? 0.0f : max(largest / form.largest, 0x1p-126f);
}

template <int THREADS>
DEVICE u32 largest_of(Values x, Feedback feedback, i64 low, int size) {
    u32 most = 0;
    for (int i = 4 * team_thread<THREADS>(); i < size; i += 4 * THREADS) {
        float p[4];
        effective4(x, feedback, low + i, min(4, size - i), p);
        for (int u = 0; u < 4; ++u) most = max(most, magnitude_bits(p[u]));
    }
    return team_max<THREADS>(most);
}

// The codes of four, and in the place of p what is left of them.
DEVICE u32 encode4(float (&p)[4], float scale, float back, Format form) {
    bool coded = scale > 0.0f;
    float factor = coded ? 1.0f / scale : 0.0f;
    u32 word = 0;
    for (int u = 0; u < 4; ++u) {
        float t = p[u] * factor, v = coded ? rounded(t, form) : 0.0f, sent = v * scale;
        bool negative = coded && __float_as_uint(t) >> 31;
        word |= code_of(v, negative, form) << 8 * u;
        p[u] = (p[u] - (negative ? -sent : sent)) * back;
    }
    return word;
}

// The blocks from b on, those of all teams of the launch.
template <int THREADS>
DEVICE void quantize(
    Values x, Feedback feedback, u8* codes, float* scales, i64 n, int block, Format form,
    i64 b = 0) {
    i64 blocks = (n + block - 1) / block;
    for (b += team_number<THREADS>(); b < blocks; b += team_count<THREADS>()) {
        i64 low = b * block;
        int size = int(min(i64(block), n - low));
        float scale = scale_of(largest_of<THREADS>(x, feedback, low, size), form);
        for (int i = 4 * team_thread<THREADS>(); i < size; i += 4 * THREADS) {
            int count = min(4, size - i);
            float p[4];
            effective4(x, feedback, low + i, count, p);
            store4(codes, low + i, count, encode4(p, scale, feedback.back, form));
            if (feedback.residual && scale == scale) store4(feedback.residual, low + i, count, p);
        }
        if (team_thread<THREADS>() == 0) scales[b] = scale;
    }
}

RARE void quantize_others(
    Values x, Feedback feedback, u8* codes, float* scales, i64 n, int block, Format form, i64 b) {
    quantize<WARP>(x, feedback, codes, scales, n, block, form, b);
}

// By teams that hold their blocks in registers.
template <class H>
DEVICE void quantize_held(
    Values x, Feedback feedback, u8* codes, float* scales, i64 n, int block, Format form) {
    bool even = are_even(x, feedback.residual, codes);
    i64 whole = whole_blocks(n, even, H::TEAMS, H::BLOCK), own = int(threadIdx.x) / H::TEAM;
    auto take = [&](const Asked<H>& asked, i64 b, auto ask_next) {
        float p[H::FOURS][4];
        i64 low = (b + own) * H::BLOCK;
        effective_held<H>(asked, x, feedback, p);
        float scale = scale_of(largest_held<H>(p), form);
        ask_next();
        UNROLLED for (int g = 0; g < H::FOURS; ++g) {
            u32 word = encode4(p[g], scale, feedback.back, form);
            store4<true>(codes, four_at<H>(low, g), 4, word);
        }
        if (feedback.residual && scale == scale) leave_held<H>(feedback.residual, low, p);
        if (team_thread<H::TEAM>() == 0) scales[b + own] = scale;
    };
    for_held<H>(x, feedback.residual, whole, take);
    if (whole * H::BLOCK < n) quantize_others(x, feedback, codes, scales, n, block, form, whole);
}

// WHOLE: the block has fours only, at addresses that allow vectors.
template <int THREADS, bool WHOLE>
DEVICE void dequantize_block(
    const u8* codes, float scale, float* out, int size, Format form, float weight, bool add) {
    for (int i = 4 * team_thread<THREADS>(); i < size; i += 4 * THREADS) {
        int count = WHOLE ? 4 : min(4, size - i);
        u32 word = load4<WHOLE>(codes, i, count);
        combine4<WHOLE>(out, i, count, weight, add, [&](float (&values)[4]) {
            decode4(word, scale, form, values);
        });
    }
}

template <int THREADS>
DEVICE void dequantize(
    const u8* codes, const float* scales, float* out, i64 n, int block, Format form, float weight,
    bool add) {
    i64 blocks = (n + block - 1) / block;
    bool even = block % 4 == 0 && is_aligned(codes, 4) && is_aligned(out, 16);
    for (i64 b = team_number<THREADS>(); b < blocks; b += team_count<THREADS>()) {
        i64 low = b * block;
        int size = int(min(i64(block), n - low));
        if (even && size == block)
            dequantize_block<THREADS, true>(
                codes + low, scales[b], out + low, size, form, weight, add);
        else
            dequantize_block<THREADS, false>(
                codes + low, scales[b], out + low, size, form, weight, add);
    }
}

struct Payloads {
    const u8* every_codes[MOST];
    const float* every_scales[MOST];
    Format form;

    METHOD const u8* codes(int r) const { return every_codes[r]; }
    METHOD float scale(int r, i64 b) const { return every_scales[r][b]; }

    template <int>
    METHOD void decode4(u32 word, int, float scale, float (&values)[4]) const {
        ::decode4(word, scale, form, values);
    }
};

template <int THREADS>
DEVICE void sum(const Payloads& payloads, Sums sums, i64 n, int block, float weight) {
    i64 blocks = (n + block - 1) / block;
    bool even = block % 4 == 0 && are_even(sums) && have_even_codes(payloads);
    for (i64 b = team_number<THREADS>(); b < blocks; b += team_count<THREADS>())
        sum_block<THREADS, 1, 2>(payloads, sums, false, b, n, block, weight, even);
}

#define QUANTIZE_AS(name, ctas, quantize)                                                         \
    CROWDED(                                                                                      \
        name, CTA, ctas,                                                                          \
        (const void* __restrict__ x, int kind, float* __restrict__ residual, float loss_scale,    \
         float back, u8* __restrict__ codes, float* __restrict__ scales, i64 n, int block,        \
         int mantissa, int bias, float largest)) {                                                \
        Format form = {mantissa, bias, largest};                                                  \
        quantize({x, kind}, {residual, loss_scale, back}, codes, scales, n, block, form);         \
    }

#define QUANTIZE(name, THREADS) QUANTIZE_AS(name, 1, quantize<THREADS>)
#define QUANTIZE_HELD(name, BLOCK)                                                                \
    QUANTIZE_AS(name, (Held<BLOCK, 1>::CTAS), (quantize_held<Held<BLOCK, 1>>))

#define DEQUANTIZE(name, THREADS)                                                                 \
    KERNEL(                                                                                       \
        name, CTA,                                                                                \
        (const u8* __restrict__ codes, const float* __restrict__ scales,                          \
         float* __restrict__ out, i64 n, int block, int mantissa, int bias, float largest,        \
         float weight, bool add)) {                                                               \
        dequantize<THREADS>(                                                                      \
            codes, scales, out, n, block, {mantissa, bias, largest}, weight, add);                \
    }

#define SUM(name, THREADS)                                                                        \
    CROWDED(                                                                                      \
        name, CTA, CROWD,                                                                         \
        (EACH_OF(const u8* __restrict__, codes), EACH_OF(const float* __restrict__, scales),      \
         const float* before, void* out, int kind, i64 n, int block, int mantissa, int bias,      \
         float largest, float weight)) {                                                          \
        Payloads payloads = {ALL_OF(codes), ALL_OF(scales), {mantissa, bias, largest}};           \
        sum<THREADS>(payloads, {before, out, kind}, n, block, weight);                            \
    }

QUANTIZE(quantize_by_warps, WARP)
QUANTIZE(quantize_by_ctas, CTA)
QUANTIZE_HELD(quantize_of_128, 128)
QUANTIZE_HELD(quantize_of_256, 256)
QUANTIZE_HELD(quantize_of_512, 512)
QUANTIZE_HELD(quantize_of_1024, 1024)
DEQUANTIZE(dequantize_by_warps, WARP)
DEQUANTIZE(dequantize_by_ctas, CTA)
SUM(sum_by_warps, WARP)
SUM(sum_by_ctas, CTA)
