// Block-wise quantisation of blocks that are held in registers; see _held.cuh.
#pragma once

#include "_blockwise.cuh"
#include "_held.cuh"

// Of 1024 codes of 2 bits there are no registers for two blocks. What is at random is bound by its
// arithmetic: half a warp takes a block of 512 at most, so that all of the warp adds up squares, in
// 16 lanes each, and works out two scales at once; and while numbers are drawn, the block comes.
template <int BLOCK, int EACH, bool RANDOM>
using HeldBlock = Held<
    BLOCK, EACH, !RANDOM && (BLOCK < 1024 || EACH < 4), (RANDOM && BLOCK <= 512 ? LANES : WARP)>;

template <class H>
DEVICE Extremes extremes_held(const float (&p)[H::FOURS][4], bool ranged) {
    Extremes found = {0.0f, 0.0f, __uint_as_float(largest_held<H>(p))};
    if (!ranged) return found;
    u32 high = 0, inverse_low = 0;
    UNROLLED for (int g = 0; g < H::FOURS; ++g)
        for (int u = 0; u < 4; ++u) {
            high = max(high, ordered(p[g][u]));
            inverse_low = max(inverse_low, ~ordered(p[g][u]));
        }
    found.high = from_ordered(team_max<H::TEAM>(high));
    found.low = from_ordered(~team_max<H::TEAM>(inverse_low));
    return found;
}

// A team's block, the b-th. What was asked for is used up when ask_next is called, before anything
// is written.
template <class H, bool RANDOM, class AskNext>
DEVICE void quantize_asked(
    const Asked<H>& asked, Values x, Feedback feedback, const Payload& to, i64 b, const Form& form,
    const Numbers& numbers, AskNext ask_next) {
    float p[H::FOURS][4];
    i64 low = b * H::BLOCK;
    effective_held<H>(asked, x, feedback, p);
    Extremes found = extremes_held<H>(p, form.statistic == RANGE);
    Grid grid = grid_of<RANDOM>(found, H::BLOCK, form, [&] {
        return sum_held<H, STAGED_SQUARES>(p, add_square);
    });
    ask_next();
    UNROLLED for (int row = 0; row < H::ROWS; ++row) {
        u32 word = 0, fractions[4] = {0u, 0u, 0u, 0u};
        UNROLLED for (int plane = 0; plane < H::EACH; ++plane) {
            int g = plane * H::ROWS + row;
            if (RANDOM) fractions_of<true>(numbers, four_at<H>(low, g), 4, fractions);
            word |= encode4<H::EACH, RANDOM, true>(p[g], fractions, grid, feedback, form)
                    << 8 / H::EACH * plane;
        }
        store4<true>(to.codes, four_at<H>(b * H::WIDTH, row), 4, word);
    }
    if (feedback.residual && grid.scale == grid.scale) leave_held<H>(feedback.residual, low, p);
    note_grid<H::TEAM>(to, b, grid);
}

// Groups that are not whole or not even: the one that begins at block b, and those a stride apart.
template <int EACH, bool RANDOM>
RARE void quantize_others(
    Values x, Feedback feedback, Payload to, i64 b, i64 n, int teams, i64 stride, Form form,
    Noise noise) {
    for (; b * form.block < n; b += stride)
        for (i64 own = b; own < b + teams && own * form.block < n; own += CTA / WARP)
            quantize_group<WARP, EACH, RANDOM>(x, feedback, to, own, n, form, noise);
}

// All blocks of n elements.
template <class H, bool RANDOM>
DEVICE void quantize_held(
    Values x, Feedback feedback, const Payload& to, i64 n, const Form& form, const Noise& noise) {
    bool even = are_even(x, feedback.residual, to.codes);
    even = even && (!RANDOM || has_even_numbers(noise.start));
    i64 whole = whole_blocks(n, even, H::TEAMS, H::BLOCK), own = int(threadIdx.x) / H::TEAM;
    auto take = [&](const Asked<H>& asked, i64 b, auto ask_next) {
        Numbers numbers = numbers_of<RANDOM>(noise, b * H::BLOCK, H::TEAMS * H::BLOCK);
        quantize_asked<H, RANDOM>(asked, x, feedback, to, b + own, form, numbers, ask_next);
    };
    i64 b = for_held<H>(x, feedback.residual, whole, take), stride = i64(gridDim.x) * H::TEAMS;
    if (b * H::BLOCK < n)
        quantize_others<H::EACH, RANDOM>(x, feedback, to, b, n, H::TEAMS, stride, form, noise);
}
