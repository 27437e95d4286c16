// A block held in registers: every element is read once, by accesses of 16 bytes, and the next
// block is asked for before this one is written.
//
// For whole blocks of BLOCK elements, a power of two, with EACH codes to a byte, at addresses that
// allow vectors. A thread of the team has four neighbouring bytes in each row of the team's, which
// is four elements of each plane: so a plane's fours lie a row apart, and so do a block's. Teams
// of a CTA take a group of blocks together, one each.
#pragma once

#include "_team.cuh"
#include "_values.cuh"

// ASKS_AHEAD: not where there are no registers for two blocks. MOST_THREADS: of a team.
template <int BLOCK_ELEMS, int CODES_EACH, bool ASKS_AHEAD = true, int MOST_THREADS = WARP>
struct Held {
    static constexpr int BLOCK = BLOCK_ELEMS, EACH = CODES_EACH, WIDTH = BLOCK / EACH;
    static constexpr int TEAM = WIDTH < 4 * MOST_THREADS ? WIDTH / 4 : MOST_THREADS;
    static constexpr int ROW = 4 * TEAM, ROWS = WIDTH / ROW, FOURS = EACH * ROWS;
    static constexpr int TEAMS = CTA / TEAM;
    static constexpr bool AHEAD = ASKS_AHEAD;
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

// The sum of all, each added by add(sum, value), in the written order. STAGED: what shared memory
// has for each thread.
template <class H, int STAGED, class Add>
DEVICE double sum_held(const float (&p)[H::FOURS][4], Add add) {
    constexpr int ROWS = H::FOURS < STAGED / 4 ? H::FOURS : STAGED / 4;  // of the team, in a piece
    float* stage = team_stage<H::TEAM, STAGED>();
    double sum = 0.0;
    UNROLLED for (int g = 0; g < H::FOURS; g += ROWS) {
        team_sync<H::TEAM>();  // until the piece before is read by all
        UNROLLED for (int f = 0; f < ROWS; ++f)
            store4<true>(stage, four_at<H>(0, f), 4, p[g + f]);
        team_sync<H::TEAM>();
        sum = lane_sum(stage, team_thread<H::TEAM>(), ROWS * H::ROW, sum, add);
    }
    return team_told<H::TEAM>(halved(sum));
}

template <class H>
DEVICE void leave_held(float* residual, i64 low, const float (&left)[H::FOURS][4]) {
    UNROLLED for (int g = 0; g < H::FOURS; ++g)
        store4<true>(residual, four_at<H>(low, g), 4, left[g]);
}

DEVICE bool are_even(Values x, const float* residual, const u8* codes) {
    return is_even(x) && is_aligned(residual, 16) && is_aligned(codes, 4);
}

// Of n elements, the blocks that make whole groups.
DEVICE i64 whole_blocks(i64 n, bool even, int teams, int block) {
    return even ? n / (teams * block) * teams : 0;
}

// Calls take(asked, b, ask_next) for each of the CTA's groups among the first `whole` blocks: it
// begins at block b, and the next one is asked for when ask_next is called, once this one is used
// up. Returns the block that the CTA would go on with. All threads of a CTA come here.
template <class H, class Take>
DEVICE i64 for_held(Values x, const float* residual, i64 whole, Take take) {
    i64 b = i64(blockIdx.x) * H::TEAMS, stride = i64(gridDim.x) * H::TEAMS;
    i64 own = int(threadIdx.x) / H::TEAM;
    Asked<H> asked = {};
    if (H::AHEAD && b < whole) ask(asked, x, residual, (b + own) * H::BLOCK);
    for (; b < whole; b += stride) {
        if (!H::AHEAD) ask(asked, x, residual, (b + own) * H::BLOCK);
        take(asked, b, [&] {
            asked = {};
            if (H::AHEAD && b + stride < whole)
                ask(asked, x, residual, (b + stride + own) * H::BLOCK);
        });
    }
    return b;
}
