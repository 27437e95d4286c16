// A block held in registers: every element is read once, by accesses of 16 bytes, and the next
// block is asked for before this one is written.
//
// For whole blocks of BLOCK elements, a power of two, with EACH codes to a byte, at addresses that
// allow vectors. A thread of the team has four neighbouring bytes in each row of the team's, which
// is four elements of each plane: so a plane's fours lie a row apart, and so do a block's.
#pragma once

#include "_team.cuh"
#include "_values.cuh"

template <int BLOCK_ELEMS, int CODES_EACH>
struct Held {
    static constexpr int BLOCK = BLOCK_ELEMS, EACH = CODES_EACH, WIDTH = BLOCK / EACH;
    static constexpr int TEAM = WIDTH < 4 * WARP ? WIDTH / 4 : WARP, ROW = 4 * TEAM;
    static constexpr int ROWS = WIDTH / ROW, FOURS = EACH * ROWS, TEAMS = CTA / TEAM;
    static constexpr bool AHEAD = FOURS <= 4;  // with more, there are no registers for two blocks
    // CTAs that share a multiprocessor's registers: what a thread holds of this block and the next.
    static constexpr int CTAS = FOURS <= 2 ? 4 : FOURS <= 4 ? 3 : 2;
    static_assert(TEAM >= LANES && ROWS * ROW == WIDTH, "the written order takes 16 lanes");
};

// What was asked for, as it comes from memory: nothing is done with it yet that would wait for it.
// All of it is set, whatever there is to ask for: what may hold an older value keeps its register.
template <class H>
struct Asked {
    u32 x[H::FOURS][4];
    float left[H::FOURS][4];
};

// Element of the vector at which the g-th four of a thread begins, of the block from `low` on.
template <class H>
DEVICE i64 four_at(i64 low, int g) {
    return low + 4 * team_thread<H::TEAM>() + g * H::ROW;
}

template <class H>
DEVICE void ask(Asked<H>& asked, Values x, const float* residual, i64 low) {
    if (x.kind == FLOAT32) {
        UNROLLED for (int g = 0; g < H::FOURS; ++g)
            load_raw4<true>({x.bits, FLOAT32}, four_at<H>(low, g), 4, asked.x[g]);
    } else {
        UNROLLED for (int g = 0; g < H::FOURS; ++g)
            load_raw4<true>({x.bits, FLOAT16}, four_at<H>(low, g), 4, asked.x[g]);
    }
    UNROLLED for (int g = 0; g < H::FOURS; ++g)
        for (int u = 0; u < 4; ++u) asked.left[g][u] = 0.0f;
    if (!residual) return;
    UNROLLED for (int g = 0; g < H::FOURS; ++g)
        load4<true>(residual, four_at<H>(low, g), 4, asked.left[g]);
}

// What goes in.
template <class H>
DEVICE void effective_held(
    const Asked<H>& asked, Values x, Feedback feedback, float (&p)[H::FOURS][4]) {
    UNROLLED for (int g = 0; g < H::FOURS; ++g) widen_raw4(asked.x[g], x.kind, p[g]);
    if (!feedback.residual) return;
    UNROLLED for (int g = 0; g < H::FOURS; ++g)
        for (int u = 0; u < 4; ++u) p[g][u] = p[g][u] + feedback.loss_scale * asked.left[g][u];
}

template <class H>
DEVICE u32 largest_held(const float (&p)[H::FOURS][4]) {
    u32 largest = 0;
    UNROLLED for (int g = 0; g < H::FOURS; ++g)
        for (int u = 0; u < 4; ++u) largest = max(largest, magnitude_bits(p[g][u]));
    return team_max<H::TEAM>(largest);
}

// The sum of the squares, in the written order.
template <class H>
DEVICE double squares_held(const float (&p)[H::FOURS][4]) {
    constexpr int ROWS = H::FOURS < 2 ? 1 : 2;  // of the team, in a piece
    float* stage = team_stage<H::TEAM, STAGED_SQUARES>();
    double sum = 0.0;
    UNROLLED for (int g = 0; g < H::FOURS; g += ROWS) {
        team_sync<H::TEAM>();  // until the piece before is read by all
        UNROLLED for (int f = 0; f < ROWS; ++f)
            store4<true>(stage, four_at<H>(0, f), 4, p[g + f]);
        team_sync<H::TEAM>();
        sum = lane_sum(stage, team_thread<H::TEAM>(), ROWS * H::ROW, sum, square);
    }
    return team_told<H::TEAM>(halved(sum));
}

template <class H>
DEVICE void leave_held(float* residual, i64 low, const float (&left)[H::FOURS][4]) {
    UNROLLED for (int g = 0; g < H::FOURS; ++g)
        store4<true>(residual, four_at<H>(low, g), 4, left[g]);
}
