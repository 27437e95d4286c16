// Block-wise quantisation; see compressa.kernels.blockwise for the arithmetic and the layout.
//
// A team takes a block: once through for its statistic, and once more, out of the first-level
// cache, for the codes. Each thread makes four neighbouring bytes, whose elements lie in one plane
// or more.

#include "_noise.cuh"
#include "_sums.cuh"
#include "_team.cuh"
#include "_values.cuh"

enum Statistic { MAX, RANGE, L2, CLIPPED };

constexpr float LARGEST = 3.402823466e+38f, SMALL = 0x1p-100f, SMALLEST = 0x1p-149f;
constexpr float LIFT = 0x1p64f;
constexpr float MOST_PARTS = 0x1p30f;  // more than any integer has, in 32768ths

struct Form {
    int block, statistic, top, bottom, zero;
    double clip;
};

struct Grid {
    float unit, offset, lift, factor;
};

struct Payload {
    u8* codes;
    float *scales, *offsets;  // offsets: or null
};

// Bits that order as the values do, -0 below 0; and back.
DEVICE u32 ordered(float value) {
    u32 bits = __float_as_uint(value);
    return bits ^ (bits >> 31 ? 0xFFFFFFFFu : 0x80000000u);
}

DEVICE float from_ordered(u32 order) {
    return __uint_as_float(order ^ (order >> 31 ? 0x80000000u : 0xFFFFFFFFu));
}

struct Extremes {
    float low, high, largest;  // the least, the greatest, and the largest magnitude
};

template <int THREADS>
DEVICE Extremes extremes(Values x, Feedback feedback, i64 low, int size, bool ranged) {
    u32 largest = 0, high = 0, inverse_low = 0;
    for (int i = 4 * team_thread<THREADS>(); i < size; i += 4 * THREADS) {
        int count = min(4, size - i);
        float p[4];
        effective4(x, feedback, low + i, count, p);
        for (int u = 0; u < 4; ++u) {
            if (u >= count) continue;
            largest = max(largest, magnitude_bits(p[u]));
            if (ranged) {
                high = max(high, ordered(p[u]));
                inverse_low = max(inverse_low, ~ordered(p[u]));
            }
        }
    }
    Extremes found = {0.0f, 0.0f, __uint_as_float(team_max<THREADS>(largest))};
    if (ranged) {
        found.high = from_ordered(team_max<THREADS>(high));
        found.low = from_ordered(~team_max<THREADS>(inverse_low));
    }
    return found;
}

template <int THREADS>
DEVICE float unit_of(Values x, Feedback feedback, i64 low, int size, float largest, Form form) {
    if (form.statistic == MAX) return largest / float(form.top);
    double squares = team_tree_sum<THREADS>(size, [&](int i) {
        double p = effective(x, feedback, low + i);
        return p * p;
    });
    double length = sqrt(squares);
    if (form.statistic == CLIPPED) {
        length = form.clip * sqrt(squares / double(size));
        length = double(largest) < length ? double(largest) : length;
    }
    length /= double(form.top);
    return float(length < double(LARGEST) ? length : double(LARGEST));
}

template <int THREADS>
DEVICE Grid grid_of(Values x, Feedback feedback, i64 low, int size, Form form) {
    Extremes found = extremes<THREADS>(x, feedback, low, size, form.statistic == RANGE);
    Grid grid = {0.0f, 0.0f, 1.0f, 1.0f};
    bool flat = found.largest == 0.0f;
    if (form.statistic == RANGE) {
        flat = found.low == found.high;
        grid.unit = (found.high - found.low) / float(form.top), grid.offset = found.low;
    } else {
        grid.unit = unit_of<THREADS>(x, feedback, low, size, found.largest, form);
    }
    if (!is_finite(found.largest) || !is_finite(grid.unit))
        return {quiet_nan(), quiet_nan(), 1.0f, 1.0f};
    if (flat) {
        grid.unit = 0.0f;
        return grid;
    }
    if (grid.unit < SMALL) {
        grid.unit = grid.unit < SMALLEST ? SMALLEST : grid.unit;
        grid.lift = LIFT;
    }
    grid.factor = 1.0f / (grid.unit * grid.lift);
    return grid;
}

// The random numbers of what a CTA has before it: at hand, from element low on, or still to be
// drawn one by one where that is more than fits.
struct Numbers {
    const Noise& noise;
    Drawn drawn;
    i64 low;
    bool at_hand;
};

template <bool RANDOM>
DEVICE int integer_of(float p, Grid grid, const Numbers& numbers, i64 i, const Form& form) {
    if (!(grid.unit > 0.0f)) return 0;
    float t = (p * grid.lift - grid.offset * grid.lift) * grid.factor;
    if (RANDOM) t = t * 32768.0f;
    t = t < -MOST_PARTS ? -MOST_PARTS : t > MOST_PARTS ? MOST_PARTS : t;
    int q = int(rintf(t));
    if (RANDOM) {
        u32 half = numbers.at_hand ? drawn_half(numbers.drawn, int(i - numbers.low))
                                   : random_half(numbers.noise, i);
        q = (q + int(half)) >> 15;
    }
    return min(max(q, form.bottom), form.top);
}

DEVICE float decoded(int q, float unit, float offset, bool ranged) {
    float product = float(q) * unit;
    return ranged ? product + offset : product;
}

// One block, by one team. EACH: codes to a byte.
template <int THREADS, int EACH, bool RANDOM>
DEVICE void quantize_block(
    Values x, Feedback feedback, const Payload& to, i64 b, i64 n, const Form& form,
    const Numbers& numbers) {
    constexpr int BITS = 8 / EACH;
    i64 low = b * form.block;
    int size = int(min(i64(form.block), n - low)), width = (size + EACH - 1) / EACH;
    Grid grid = grid_of<THREADS>(x, feedback, low, size, form);
    for (int i = 4 * team_thread<THREADS>(); i < width; i += 4 * THREADS) {
        u32 word = 0;
        for (int plane = 0; plane < EACH; ++plane) {
            int first = plane * width + i, count = min(min(4, width - i), size - first);
            float p[4], left[4];
            effective4(x, feedback, low + first, count, p);
            for (int u = 0; u < 4; ++u) {
                i64 place = low + first + u;
                int q = u < count ? integer_of<RANDOM>(p[u], grid, numbers, place, form) : 0;
                u32 code = u32(q + form.zero) & ((1u << BITS) - 1u);
                word |= code << (8 * u + BITS * plane);
                float sent = decoded(q, grid.unit, grid.offset, form.statistic == RANGE);
                left[u] = (p[u] - sent) * feedback.back;
            }
            if (feedback.residual && grid.unit == grid.unit)
                store4(feedback.residual, low + first, count, left);
        }
        store4(to.codes, low / EACH + i, min(4, width - i), word);
    }
    if (team_thread<THREADS>() == 0) {
        to.scales[b] = grid.unit;
        if (to.offsets) to.offsets[b] = grid.offset;
    }
}

template <int THREADS, int EACH, bool RANDOM>
DEVICE void quantize(
    Values x, Feedback feedback, const Payload& to, i64 n, const Form& form, const Noise& noise) {
    constexpr int TEAMS = CTA / THREADS;
    i64 blocks = (n + form.block - 1) / form.block;
    for (i64 b = i64(blockIdx.x) * TEAMS; b < blocks; b += i64(gridDim.x) * TEAMS) {
        i64 low = b * form.block, span = min(i64(TEAMS) * form.block, n - low);
        Numbers numbers = {noise, {nullptr, 0}, low, RANDOM && span <= SPAN};
        if (RANDOM && numbers.at_hand) numbers.drawn = drawn_for_span(noise, low, int(span));
        i64 own = b + int(threadIdx.x) / THREADS;
        if (own < blocks)
            quantize_block<THREADS, EACH, RANDOM>(x, feedback, to, own, n, form, numbers);
    }
}

// Four neighbours of a plane, out of four bytes.
template <int EACH>
DEVICE void decode4(
    u32 word, int plane, int zero, float unit, float offset, bool ranged, float (&values)[4]) {
    constexpr int BITS = 8 / EACH;
    for (int u = 0; u < 4; ++u) {
        u32 code = word >> (8 * u + BITS * plane) & ((1u << BITS) - 1u);
        int q = EACH == 1 && !ranged ? int(code << 24) >> 24 : int(code) - zero;
        values[u] = decoded(q, unit, offset, ranged);
    }
}

template <int THREADS, int EACH>
DEVICE void dequantize(
    const u8* codes, const float* scales, const float* offsets, float* out, i64 n, int block,
    int zero, float weight, bool add) {
    i64 blocks = (n + block - 1) / block;
    for (i64 b = team_number<THREADS>(); b < blocks; b += team_count<THREADS>()) {
        i64 low = b * block;
        int size = int(min(i64(block), n - low)), width = (size + EACH - 1) / EACH;
        float unit = scales[b], offset = offsets ? offsets[b] : 0.0f;
        for (int i = 4 * team_thread<THREADS>(); i < width; i += 4 * THREADS) {
            u32 word = load4(codes, low / EACH + i, min(4, width - i));
            for (int plane = 0; plane < EACH; ++plane) {
                int first = plane * width + i, count = min(min(4, width - i), size - first);
                float values[4];
                decode4<EACH>(word, plane, zero, unit, offset, offsets != nullptr, values);
                combine4(out, low + first, count, values, weight, add);
            }
        }
    }
}

struct Payloads {
    const u8* codes[MOST];
    const float *scales[MOST], *offsets[MOST];
};

template <int THREADS, int EACH>
DEVICE void sum(
    const Payloads& payloads, Sums sums, i64 n, int block, int zero, float weight) {
    i64 blocks = (n + block - 1) / block;
    bool ranged = payloads.offsets[0] != nullptr;
    for (i64 b = team_number<THREADS>(); b < blocks; b += team_count<THREADS>()) {
        i64 low = b * block;
        int size = int(min(i64(block), n - low)), width = (size + EACH - 1) / EACH;
        float units[MOST], offsets[MOST];
        FOR_PAYLOADS(r) {
            units[r] = payloads.codes[r] ? payloads.scales[r][b] : 0.0f;
            offsets[r] = payloads.codes[r] && ranged ? payloads.offsets[r][b] : 0.0f;
        }
        for (int i = 4 * team_thread<THREADS>(); i < width; i += 4 * THREADS) {
            u32 words[MOST];
            FOR_PAYLOADS(r) if (payloads.codes[r])
                words[r] = load4(payloads.codes[r], low / EACH + i, min(4, width - i));
            for (int plane = 0; plane < EACH; ++plane) {
                int first = plane * width + i, count = min(min(4, width - i), size - first);
                float total[4], values[4];
                begin4(sums, low + first, count, total);
                FOR_PAYLOADS(r) if (payloads.codes[r]) {
                    decode4<EACH>(words[r], plane, zero, units[r], offsets[r], ranged, values);
                    add4(total, values, weight);
                }
                finish4(sums, low + first, count, total);
            }
        }
    }
}

#define QUANTIZE(name, THREADS, EACH, RANDOM)                                                     \
    KERNEL(                                                                                       \
        name, CTA,                                                                                \
        (const void* x, int kind, float* residual, float scale, float back, u8* codes,            \
         float* scales, float* offsets, i64 n, int block, int statistic, int top, int bottom,     \
         int zero, double clip, u32 seed, u32 stream, u32 step, u32 parameter, i64 start)) {      \
        Form form = {block, statistic, top, bottom, zero, clip};                                  \
        Noise noise = {seed, stream, step, parameter, start};                                     \
        quantize<THREADS, EACH, RANDOM>(                                                          \
            {x, kind}, {residual, scale, back}, {codes, scales, offsets}, n, form, noise);        \
    }

#define DEQUANTIZE(name, THREADS, EACH)                                                           \
    KERNEL(                                                                                       \
        name, CTA,                                                                                \
        (const u8* codes, const float* scales, const float* offsets, float* out, i64 n,           \
         int block, int zero, float weight, bool add)) {                                          \
        dequantize<THREADS, EACH>(codes, scales, offsets, out, n, block, zero, weight, add);      \
    }

#define SUM(name, THREADS, EACH)                                                                  \
    KERNEL(                                                                                       \
        name, CTA,                                                                                \
        (EACH_OF(const u8*, codes), EACH_OF(const float*, scales), EACH_OF(const float*, offsets), \
         const float* before, void* out, int kind, i64 n, int block, int zero, float weight)) {   \
        Payloads payloads = {ALL_OF(codes), ALL_OF(scales), ALL_OF(offsets)};                     \
        sum<THREADS, EACH>(payloads, {before, out, kind}, n, block, zero, weight);                \
    }

QUANTIZE(quantize_8_by_warps, WARP, 1, false)
QUANTIZE(quantize_4_by_warps, WARP, 2, false)
QUANTIZE(quantize_2_by_warps, WARP, 4, false)
QUANTIZE(quantize_8_by_ctas, CTA, 1, false)
QUANTIZE(quantize_4_by_ctas, CTA, 2, false)
QUANTIZE(quantize_2_by_ctas, CTA, 4, false)
QUANTIZE(quantize_8_at_random_by_warps, WARP, 1, true)
QUANTIZE(quantize_4_at_random_by_warps, WARP, 2, true)
QUANTIZE(quantize_2_at_random_by_warps, WARP, 4, true)
QUANTIZE(quantize_8_at_random_by_ctas, CTA, 1, true)
QUANTIZE(quantize_4_at_random_by_ctas, CTA, 2, true)
QUANTIZE(quantize_2_at_random_by_ctas, CTA, 4, true)
DEQUANTIZE(dequantize_8_by_warps, WARP, 1)
DEQUANTIZE(dequantize_4_by_warps, WARP, 2)
DEQUANTIZE(dequantize_2_by_warps, WARP, 4)
DEQUANTIZE(dequantize_8_by_ctas, CTA, 1)
DEQUANTIZE(dequantize_4_by_ctas, CTA, 2)
DEQUANTIZE(dequantize_2_by_ctas, CTA, 4)
SUM(sum_8_by_warps, WARP, 1)
SUM(sum_4_by_warps, WARP, 2)
SUM(sum_2_by_warps, WARP, 4)
SUM(sum_8_by_ctas, CTA, 1)
SUM(sum_4_by_ctas, CTA, 2)
SUM(sum_2_by_ctas, CTA, 4)
