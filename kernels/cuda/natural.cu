// Natural compression; see compressa.kernels.natural for the arithmetic and the layout.
//
// A warp takes a group of 1024 elements, 32 to a thread: four neighbours of each plane of signs.
// Whole groups are held in registers, and random numbers are drawn while they are on their way.

#include "_held.cuh"
#include "_philox.cuh"
#include "_signs.cuh"
#include "_sums.cuh"
#include "_values.cuh"

constexpr int GROUP = 1024;

using Group = Held<GROUP, PLANES>;

static_assert(SPAN == GROUP * Group::TEAMS, "a CTA draws what its warps need");

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

// Four neighbours: their exponents, a byte each; signs go to the lowest bits of bytes. What is
// left, if something is to be kept, takes the place of p.
DEVICE u32 encode4(float (&p)[4], const u32 (&fractions)[4], Feedback feedback, u32& signs) {
    u32 word = 0;
    signs = 0;
    for (int u = 0; u < 4; ++u) {
        word |= rounded_exponent(p[u], fractions[u]) << 8 * u;
        signs |= sign_of(p[u]) >> 31 << 8 * u;
    }
    if (!feedback.residual) return word;
    float values[4];
    decode4(word, signs, values);
    for (int u = 0; u < 4; ++u) p[u] = (p[u] - values[u]) * feedback.back;
    return word;
}

// What is left goes to the residual, but where p was not finite.
template <bool EVEN = false>
DEVICE void leave4(float* residual, i64 i, int count, const float (&left)[4], u32 exponents) {
    bool sent[4], all = true;
    for (int u = 0; u < 4; ++u) {
        sent[u] = (exponents >> 8 * u & 0xFFu) != 255u;
        all = all && sent[u];
    }
    if (all) return store4<EVEN>(residual, i, count, left);
    for (int u = 0; u < 4; ++u)
        if (u < count && sent[u]) residual[i + u] = left[u];
}

// The group that begins at element `offset` of the span.
DEVICE void quantize_group(
    Values x, Feedback feedback, u8* exponents, u8* signs, i64 low, int size, Drawn drawn,
    int offset) {
    int width = sign_width(size);
    for (int i = 4 * team_thread<WARP>(); i < width; i += 4 * WARP) {
        u32 packed = 0, negative, fractions[4];
        int some = min(4, width - i);
        for (int plane = 0; plane < PLANES; ++plane) {
            int first = plane * width + i, count = min(some, size - first);
            float p[4];
            effective4(x, feedback, low + first, count, p);
            drawn_fractions(drawn, offset + first, count, fractions);
            u32 word = encode4(p, fractions, feedback, negative);
            store4(exponents, low + first, count, word);
            if (feedback.residual) leave4(feedback.residual, low + first, count, p, word);
            packed |= negative << plane;
        }
        store4(signs, low / PLANES + i, some, packed);
    }
}

// The groups from b on, those of all CTAs of the launch.
RARE void quantize_others(
    Values x, Feedback feedback, u8* exponents, u8* signs, i64 b, i64 n, Noise noise) {
    for (i64 low = b * GROUP; low < n; low += i64(gridDim.x) * SPAN) {
        int offset = int(threadIdx.x) / WARP * GROUP;
        Drawn drawn = drawn_for_span(noise, low, int(min(i64(SPAN), n - low)));
        int size = int(min(i64(GROUP), n - low - offset));
        if (size > 0)
            quantize_group(x, feedback, exponents, signs, low + offset, size, drawn, offset);
    }
}

DEVICE void quantize_all(
    Values x, Feedback feedback, u8* exponents, u8* signs, i64 n, const Noise& noise) {
    bool even = are_even(x, feedback.residual, exponents) && is_aligned(signs, 4);
    even = even && has_even_numbers(noise.start);
    i64 whole = whole_blocks(n, even, Group::TEAMS, GROUP);
    auto take = [&](const Asked<Group>& asked, i64 b, auto ask_next) {
        Drawn drawn = drawn_for_span(noise, b * GROUP, SPAN);
        int offset = int(threadIdx.x) / WARP * GROUP;
        i64 low = b * GROUP + offset;
        float p[Group::FOURS][4];
        effective_held<Group>(asked, x, feedback, p);
        ask_next();
        u32 packed = 0, negative, fractions[4];
        UNROLLED for (int plane = 0; plane < PLANES; ++plane) {
            i64 first = four_at<Group>(low, plane);
            drawn_fractions<true>(drawn, int(first - b * GROUP), 4, fractions);
            u32 word = encode4(p[plane], fractions, feedback, negative);
            store4<true>(exponents, first, 4, word);
            if (feedback.residual) leave4<true>(feedback.residual, first, 4, p[plane], word);
            packed |= negative << plane;
        }
        store4<true>(signs, four_at<Group>(low / PLANES, 0), 4, packed);
    };
    i64 b = for_held<Group>(x, feedback.residual, whole, take);
    if (b * GROUP < n) quantize_others(x, feedback, exponents, signs, b, n, noise);
}

CROWDED(
    quantize, CTA, Group::CTAS,
    (const void* __restrict__ x, int kind, float* __restrict__ residual, float loss_scale,
     float back, u8* __restrict__ exponents, u8* __restrict__ signs, i64 n, u32 seed, u32 stream,
     u32 step, u32 parameter, i64 start)) {
    Noise noise = {seed, stream, step, parameter, start};
    quantize_all({x, kind}, {residual, loss_scale, back}, exponents, signs, n, noise);
}

// The group that begins at element `low`. WHOLE: of fours only, at addresses that allow vectors.
template <bool WHOLE>
DEVICE void dequantize_group(
    const u8* exponents, const u8* signs, float* out, i64 low, int size, float weight, bool add) {
    for_planes<WARP, WHOLE>(size, [&](int plane, int i, int some, int first, int count) {
        u32 negative = load4<WHOLE>(signs, low / PLANES + i, some);
        u32 word = load4<WHOLE>(exponents, low + first, count);
        combine4<WHOLE>(out, low + first, count, weight, add, [&](float (&values)[4]) {
            decode4(word, negative >> plane, values);
        });
    });
}

KERNEL(
    dequantize, CTA,
    (const u8* __restrict__ exponents, const u8* __restrict__ signs, float* __restrict__ out,
     i64 n, float weight, bool add)) {
    bool even = is_aligned(exponents, 4) && is_aligned(signs, 4) && is_aligned(out, 16);
    for (i64 low = team_number<WARP>() * GROUP; low < n; low += team_count<WARP>() * GROUP) {
        int size = int(min(i64(GROUP), n - low));
        if (even && size == GROUP)
            dequantize_group<true>(exponents, signs, out, low, GROUP, weight, add);
        else dequantize_group<false>(exponents, signs, out, low, size, weight, add);
    }
}

struct Payloads {
    const u8* exponents[MOST];
    const u8* signs[MOST];
};

// As above.
template <bool WHOLE>
DEVICE void sum_group(const Payloads& payloads, Sums sums, i64 low, int size, float weight) {
    for_planes<WARP, WHOLE>(size, [&](int plane, int i, int some, int first, int count) {
        u32 words[MOST], signs[MOST];
        float total[4], values[4];
        FOR_PAYLOADS(r) if (payloads.exponents[r]) {
            words[r] = load4<WHOLE>(payloads.exponents[r], low + first, count);
            signs[r] = load4<WHOLE>(payloads.signs[r], low / PLANES + i, some);
        }
        begin4<WHOLE>(sums, low + first, count, total);
        FOR_PAYLOADS(r) if (payloads.exponents[r]) {
            decode4(words[r], signs[r] >> plane, values);
            add4(total, values, weight);
        }
        finish4<WHOLE>(sums, low + first, count, total);
    });
}

CROWDED(
    sums, CTA, CROWD,
    (EACH_OF(const u8* __restrict__, exponents), EACH_OF(const u8* __restrict__, signs),
     const float* before, void* out, int kind, i64 n, float weight)) {
    const Payloads payloads = {ALL_OF(exponents), ALL_OF(signs)};
    Sums sums = {before, out, kind};
    bool even = are_even(sums);
    FOR_PAYLOADS(r) even = even && is_aligned(payloads.exponents[r], 4);
    FOR_PAYLOADS(r) even = even && is_aligned(payloads.signs[r], 4);
    for (i64 low = team_number<WARP>() * GROUP; low < n; low += team_count<WARP>() * GROUP) {
        int size = int(min(i64(GROUP), n - low));
        if (even && size == GROUP) sum_group<true>(payloads, sums, low, GROUP, weight);
        else sum_group<false>(payloads, sums, low, size, weight);
    }
}
