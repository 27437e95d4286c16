// Block-wise quantisation: what a team finds out about its block, and how it makes codes of it.
//
// A block of any size goes through twice: for its statistic, and once more, out of the first-level
// cache, for the codes. Each thread makes four neighbouring bytes, whose elements lie in one plane
// or more. Blocks of the usual sizes are held in registers; see _blockwise_held.cuh.
#pragma once

#include "_block_sums.cuh"
#include "_philox.cuh"
#include "_team.cuh"
#include "_values.cuh"

enum Statistic { MAX, RANGE, L2, CLIPPED };

constexpr float LARGEST = 3.402823466e+38f, SMALL = 0x1p-100f, SMALLEST = 0x1p-149f;
constexpr float LIFT = 0x1p64f;
// Added to a number of less than 22 bits, it rounds that as rintf does, to what the lowest bits
// then say: an addition where rounding and converting are two slow instructions.
constexpr float TO_EVEN = 0x1.8p23f;

struct Form {
    int block, statistic, top, bottom, zero;
    double clip;
};

// t = (p - offset) * factor is cut off at bottom and top, which are 0 where all codes are those of
// 0. What is rounded at random is so in units of 2^-FRACTION_BITS.
struct Grid {
    float scale, offset, lift, factor, bottom, top;
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

// squares(): the sum of the squares of the block. All threads of a team come here.
template <class Squares>
DEVICE float scale_of(float largest, int size, const Form& form, Squares squares) {
    if (form.statistic == MAX) return largest / float(form.top);
    double sum = squares(), length = sqrt(form.statistic == CLIPPED ? sum / double(size) : sum);
    if (form.statistic == CLIPPED) {
        length = form.clip * length;
        length = double(largest) < length ? double(largest) : length;
    }
    length /= double(form.top);
    return fminf(float(length), LARGEST);
}

template <bool RANDOM, class Squares>
DEVICE Grid grid_of(Extremes found, int size, const Form& form, Squares squares) {
    constexpr float UNITS = RANDOM ? float(1 << FRACTION_BITS) : 1.0f;
    Grid grid = {0.0f, 0.0f, 1.0f, 1.0f, 0.0f, 0.0f};
    bool flat = found.largest == 0.0f;
    if (form.statistic == RANGE) {
        flat = found.low == found.high;
        grid.scale = (found.high - found.low) / float(form.top), grid.offset = found.low;
    } else {
        grid.scale = scale_of(found.largest, size, form, squares);
    }
    if (!is_finite(found.largest) || !is_finite(grid.scale))
        return {quiet_nan(), quiet_nan(), 1.0f, 1.0f, 0.0f, 0.0f};
    if (flat) {
        grid.scale = 0.0f;
        return grid;
    }
    if (grid.scale < SMALL) {
        grid.scale = grid.scale < SMALLEST ? SMALLEST : grid.scale;
        grid.lift = LIFT;
    }
    grid.factor = 1.0f / (grid.scale * grid.lift) * UNITS;
    grid.bottom = float(form.bottom) * UNITS, grid.top = float(form.top) * UNITS;
    return grid;
}

template <int THREADS>
DEVICE double sum_of_squares(Values x, Feedback feedback, i64 low, int size) {
    float* stage = team_stage<THREADS, STAGED_SQUARES>();
    auto fill = [&](int first, int count) {
        for (int i = 4 * team_thread<THREADS>(); i < count; i += 4 * THREADS) {
            float p[4];
            effective4(x, feedback, low + first + i, min(4, count - i), p);
            store4(stage, i, 4, p);
        }
    };
    return team_tree_sum<THREADS, STAGED_SQUARES * THREADS>(stage, size, fill, add_square);
}

// An integer and, if it is at random, FRACTION_BITS below it.
template <bool RANDOM>
DEVICE u32 fixed_point_of(float p, Grid grid, u32 fraction) {
    float t = (p * grid.lift - grid.offset * grid.lift) * grid.factor;
    t = fminf(fmaxf(t, grid.bottom), grid.top);
    if (!RANDOM) return __float_as_uint(t + TO_EVEN) - __float_as_uint(TO_EVEN);
    return u32(int(t)) + fraction;
}

DEVICE float decoded(int q, float scale, float offset, bool ranged) {
    float product = float(q) * scale;
    return ranged ? product + offset : product;
}

// Four neighbours of a plane, out of four bytes.
template <int EACH>
DEVICE void decode4(
    u32 word, int plane, int zero, float scale, float offset, bool ranged, float (&values)[4]) {
    constexpr int BITS = 8 / EACH;
    for (int u = 0; u < 4; ++u) {
        u32 code = word >> (8 * u + BITS * plane) & ((1u << BITS) - 1u);
        int q = EACH == 1 && !ranged ? int(code << 24) >> 24 : int(code) - zero;
        values[u] = decoded(q, scale, offset, ranged);
    }
}

// Four neighbours of a plane: their codes, each in the lowest bits of a byte, and in the place of p
// what is left of them. SPARES: not where nothing keeps it, for which RARE code lacks registers.
template <int EACH, bool RANDOM, bool SPARES>
DEVICE u32 encode4(
    float (&p)[4], const u32 (&fractions)[4], Grid grid, Feedback feedback, const Form& form) {
    constexpr int BELOW = RANDOM ? FRACTION_BITS : 0;
    constexpr u32 CODE = (1u << 8 / EACH) - 1u;
    u32 word = 0;
    bool ranged = form.statistic == RANGE;
    for (int u = 0; u < 4; ++u) {
        u32 fixed = fixed_point_of<RANDOM>(p[u], grid, fractions[u]);
        u32 code = fixed + (u32(form.zero) << BELOW);
        int place = 8 * u - BELOW;  // of the code: one shift brings it there
        word |= (place < 0 ? code >> -place : code << place) & CODE << 8 * u;
        if (SPARES && !feedback.residual) continue;
        int q = int(fixed) >> BELOW;
        p[u] = (p[u] - decoded(q, grid.scale, grid.offset, ranged)) * feedback.back;
    }
    return word;
}

template <int THREADS>
DEVICE void note_grid(const Payload& to, i64 b, Grid grid) {
    if (team_thread<THREADS>() != 0) return;
    to.scales[b] = grid.scale;
    if (to.offsets) to.offsets[b] = grid.offset;
}

// One block, by one team. EACH: codes to a byte.
template <int THREADS, int EACH, bool RANDOM>
DEVICE void quantize_block(
    Values x, Feedback feedback, const Payload& to, i64 b, i64 n, const Form& form,
    const Numbers& numbers) {
    i64 low = b * form.block;
    int size = int(min(i64(form.block), n - low)), width = (size + EACH - 1) / EACH;
    Extremes found = extremes<THREADS>(x, feedback, low, size, form.statistic == RANGE);
    Grid grid = grid_of<RANDOM>(
        found, size, form, [&] { return sum_of_squares<THREADS>(x, feedback, low, size); });
    for (int i = 4 * team_thread<THREADS>(); i < width; i += 4 * THREADS) {
        u32 word = 0;
        for (int plane = 0; plane < EACH; ++plane) {
            int first = plane * width + i, count = min(min(4, width - i), size - first);
            float p[4];
            u32 fractions[4] = {0u, 0u, 0u, 0u};
            effective4(x, feedback, low + first, count, p);
            for (int u = 0; u < 4; ++u)  // what lacks gets the code of 0
                if (form.statistic == RANGE && u >= count) p[u] = grid.offset;
            if (RANDOM) fractions_of(numbers, low + first, count, fractions);
            word |= encode4<EACH, RANDOM, false>(p, fractions, grid, feedback, form)
                    << 8 / EACH * plane;
            if (feedback.residual && grid.scale == grid.scale)
                store4(feedback.residual, low + first, count, p);
        }
        store4(to.codes, low / EACH + i, min(4, width - i), word);
    }
    note_grid<THREADS>(to, b, grid);
}

// The blocks from b on that a CTA takes at once, one to a team, of a vector of n elements.
template <int THREADS, int EACH, bool RANDOM>
DEVICE void quantize_group(
    Values x, Feedback feedback, const Payload& to, i64 b, i64 n, const Form& form,
    const Noise& noise) {
    i64 low = b * form.block, span = min(i64(CTA / THREADS) * form.block, n - low);
    Numbers numbers = numbers_of<RANDOM>(noise, low, span);
    i64 own = b + int(threadIdx.x) / THREADS;
    if (own * form.block < n)
        quantize_block<THREADS, EACH, RANDOM>(x, feedback, to, own, n, form, numbers);
}

struct Affine {
    float scale, offset;
};

// Payloads whose codes are integers, for `sum_block`.
template <class Payloads>
struct Integers {
    const Payloads& payloads;
    bool ranged;
    int zero;

    METHOD const u8* codes(int r) const { return payloads.codes(r); }

    METHOD Affine scale(int r, i64 b) const {
        return {payloads.scales(r)[b], ranged ? payloads.offsets(r)[b] : 0.0f};
    }

    template <int EACH>
    METHOD void decode4(u32 word, int plane, Affine scale, float (&values)[4]) const {
        ::decode4<EACH>(word, plane, zero, scale.scale, scale.offset, ranged, values);
    }
};
