// Natural compression; see compressa.kernels.natural for the arithmetic and the layout.
//
// A warp takes a group of 1024 elements, 32 to a thread: four neighbours of each plane of signs.

#include "_philox.cuh"
#include "_signs.cuh"
#include "_sums.cuh"
#include "_values.cuh"

constexpr int GROUP = 1024;
constexpr int AT_ONCE = 2;  // planes whose elements are asked for before the first is worked on

static_assert(SPAN == GROUP * (CTA / WARP), "a CTA draws what its warps need");

// The biased exponent of p, rounded up or down; 255 where p is not finite.
DEVICE u32 rounded_exponent(float p, u32 fraction) {
    u32 magnitude = magnitude_bits(p);
    if (magnitude >= 0x7F800000u) return 255u;
    if (magnitude < 1u << 23) return 0u;
    return min((magnitude + fraction) >> FRACTION_BITS, 254u);
}

DEVICE float power(u32 exponent, u32 sign) { return __uint_as_float(exponent << 23 | sign); }

// Four neighbours, whose signs are the lowest bits of bytes.
DEVICE void decode4(u32 word, u32 negative, float (&values)[4]) {
    for (int u = 0; u < 4; ++u) values[u] = power(word >> 8 * u & 0xFFu, sign_bit(negative, u));
}

// Four neighbours, from `place` of the span on; returns the signs, in the lowest bits of bytes.
DEVICE u32 quantize4(
    const float (&x)[4], float (&left)[4], Feedback feedback, u8* exponents, i64 i, int count,
    Drawn drawn, int place) {
    u32 word = 0, signs = 0, fractions[4];
    drawn_fractions(drawn, place, count, fractions);
    for (int u = 0; u < 4; ++u) {
        float p = feedback.residual ? x[u] + feedback.loss_scale * left[u] : x[u];
        u32 exponent = rounded_exponent(p, fractions[u]);
        u32 sign = sign_of(p);
        word |= exponent << 8 * u, signs |= sign >> 31 << 8 * u;
        if (is_finite(p)) left[u] = (p - power(exponent, sign)) * feedback.back;
    }
    store4(exponents, i, count, word);
    if (feedback.residual) store4(feedback.residual, i, count, left);
    return signs;
}

// The group that begins at element `place` of the span.
DEVICE void quantize_group(
    Values x, Feedback feedback, u8* exponents, u8* signs, i64 low, int size, Drawn drawn,
    int place) {
    int width = sign_width(size);
    for (int i = 4 * team_thread<WARP>(); i < width; i += 4 * WARP) {
        u32 packed = 0;
        int some = min(4, width - i);
        for (int plane = 0; plane < PLANES; plane += AT_ONCE) {
            float values[AT_ONCE][4], left[AT_ONCE][4] = {};
            UNROLLED for (int j = 0; j < AT_ONCE; ++j) {
                int first = (plane + j) * width + i, count = min(some, size - first);
                load4(x, low + first, count, values[j]);
                if (feedback.residual) load4(feedback.residual, low + first, count, left[j]);
            }
            UNROLLED for (int j = 0; j < AT_ONCE; ++j) {
                int first = (plane + j) * width + i, count = min(some, size - first);
                packed |= quantize4(
                              values[j], left[j], feedback, exponents, low + first, count, drawn,
                              place + first)
                          << (plane + j);
            }
        }
        store4(signs, low / PLANES + i, some, packed);
    }
}

KERNEL(
    quantize, CTA,
    (const void* x, int kind, float* residual, float loss_scale, float back, u8* exponents,
     u8* signs, i64 n, u32 seed, u32 stream, u32 step, u32 parameter, i64 start)) {
    Noise noise = {seed, stream, step, parameter, start};
    for (i64 span = team_number<CTA>(); span * SPAN < n; span += team_count<CTA>()) {
        int place = int(threadIdx.x) / WARP * GROUP;
        i64 low = span * SPAN, left = n - low;
        Drawn drawn = drawn_for_span(noise, low, int(min(i64(SPAN), left)));
        int size = int(min(i64(GROUP), left - place));
        if (size > 0)
            quantize_group(
                {x, kind}, {residual, loss_scale, back}, exponents, signs, low + place, size, drawn,
                place);
    }
}

KERNEL(
    dequantize, CTA,
    (const u8* exponents, const u8* signs, float* out, i64 n, float weight, bool add)) {
    for (i64 low = team_number<WARP>() * GROUP; low < n; low += team_count<WARP>() * GROUP) {
        int size = int(min(i64(GROUP), n - low));
        for_signs<WARP>(signs, low / PLANES, size, [&](int first, int count, u32 negative) {
            u32 word = load4(exponents, low + first, count);
            combine4(out, low + first, count, weight, add, [&](float (&values)[4]) {
                decode4(word, negative, values);
            });
        });
    }
}

struct Payloads {
    const u8* exponents[MOST];
    const u8* signs[MOST];
};

// The sums of the group that begins at element `low`.
DEVICE void sum_group(const Payloads& payloads, Sums sums, i64 low, int size, float weight) {
    int width = sign_width(size), fours = (width + 3) / 4;
    for (int t = team_thread<WARP>(); t < PLANES * fours; t += WARP) {
        int plane = t / fours, i = 4 * (t % fours), some = min(4, width - i);
        int first = plane * width + i, count = min(some, size - first);
        if (count < 1) continue;
        u32 words[MOST], negative[MOST];
        float total[4], values[4];
        FOR_PAYLOADS(r) if (payloads.exponents[r]) {
            words[r] = load4(payloads.exponents[r], low + first, count);
            negative[r] = load4(payloads.signs[r], low / PLANES + i, some) >> plane;
        }
        begin4(sums, low + first, count, total);
        FOR_PAYLOADS(r) if (payloads.exponents[r]) {
            decode4(words[r], negative[r], values);
            add4(total, values, weight);
        }
        finish4(sums, low + first, count, total);
    }
}

KERNEL(
    sums, CTA,
    (EACH_OF(const u8*, exponents), EACH_OF(const u8*, signs), const float* before, void* out,
     int kind, i64 n, float weight)) {
    const Payloads payloads = {ALL_OF(exponents), ALL_OF(signs)};
    for (i64 low = team_number<WARP>() * GROUP; low < n; low += team_count<WARP>() * GROUP)
        sum_group(payloads, {before, out, kind}, low, int(min(i64(GROUP), n - low)), weight);
}
