// The one pass over all of the memory that a selection begins with, and what is decided after it.
#pragma once

#include "_select.cuh"

// Four from i on, and four from each further step on: all are asked for before any is waited for.
template <bool FIRST, int TIMES>
DEVICE void surveyed4(const Source& from, i64 i, int count, int step, float (&q)[TIMES][4]) {
    float* residual = from.feedback.residual;
    const bool again = !FIRST && residual;
    float left[TIMES][4];
    for (int t = 0; t < TIMES && !again; ++t) load4(from.x, i + t * step, count - t * step, q[t]);
    for (int t = 0; t < TIMES && residual; ++t)
        load4(residual, i + t * step, count - t * step, left[t]);
    for (int t = 0; t < TIMES; ++t)
        for (int u = 0; u < 4; ++u) {
            float p = q[t][u];
            if (residual && !again) p = p + from.feedback.loss_scale * left[t][u];
            q[t][u] = again ? left[t][u] : p * from.feedback.back;
        }
}

// Mark and count the candidates of a tile; return the largest magnitude that this lane sees.
template <bool FIRST>
DEVICE u32 survey_tile(
    const Source& from, i64 low, u32 least, u32 begin, u32 shift, u32* marks, u32* counts) {
    constexpr int STEP = 4 * WARP, AT_ONCE = 2;
    int lane = team_thread<WARP>(), size = int(min(i64(TILE), from.n - low));
    u32 largest = 0;
    for (int step = 0; step < TILE; step += AT_ONCE * STEP) {
        float q[AT_ONCE][4];
        int begins = step + 4 * lane;
        surveyed4<FIRST>(from, low + begins, size - begins, STEP, q);
        for (int b = 0; b < AT_ONCE; ++b) {
            int i = begins + b * STEP;
            u32 word = 0;
            for (int u = 0; u < 4; ++u) {
                u32 bits = magnitude_bits(q[b][u]);
                largest = max(largest, bits);
                if (i + u >= size || bits < least) continue;
                atomicAdd(counts + min((bits - begin) >> shift, BINS - 1u), 1u);
                word |= 1u << (4 * (lane % 8) + u);
            }
            if (FIRST && from.feedback.residual)
                keep4(from.feedback.residual, low + i, size - i, q[b]);
            for (int other = 1; other < 8; other *= 2)
                word |= __shfl_xor_sync(WHOLE_WARP, word, other);
            if (lane % 8 == 0) marks[i / 32] = word;
        }
    }
    return largest;
}

// Leave q in the residual; mark and count candidates, in the second survey in counts[1]. Each warp
// calls measure(tile, low, size) for its tiles. Returns whether this CTA is the last to finish, and
// so knows all.
template <bool FIRST, class Measure>
DEVICE bool surveyed(const Source& from, State* state, u64* marks, Measure measure) {
    constexpr int LEVEL = FIRST ? 0 : 1;
    __shared__ u32 counts[BINS];
    clear_counts(counts);
    u32 least = state->least, begin = state->low, shift = state->shift, largest = 0;
    i64 tiles = (from.n + TILE - 1) / TILE;
    for (i64 tile = team_number<WARP>(); tile < tiles; tile += team_count<WARP>()) {
        i64 low = tile * TILE;
        u32* tile_marks = reinterpret_cast<u32*>(marks + tile * WORDS);
        u32 here = survey_tile<FIRST>(from, low, least, begin, shift, tile_marks, counts);
        largest = max(largest, here);
        measure(tile, low, int(min(i64(TILE), from.n - low)));
    }
    largest = team_max<CTA>(largest);
    if (FIRST && threadIdx.x == 0) atomicMax(&state->largest, largest);
    add_counts(counts, state->counts[LEVEL]);
    if (!is_last_cta(state->arrived + LEVEL)) return false;
    if (threadIdx.x == 0) state->surveys = LEVEL + 1;
    return true;
}

// Decide what comes after a survey.
DEVICE void judge(State* state, const Crossing& found, u64 most) {
    state->wanted = most;
    if (has_overflown(state))
        state->todo = NOTHING;
    else if (most == 0)
        settle(state, NONE, 0);
    else if (found.bin == BINS - 1)
        survey_from(state, state->low + (u32(found.bin) << state->shift));
    else if (found.bin >= 0)
        narrow(state, found);
    else if (state->least > state->floor)
        survey_from(state, state->floor);
    else
        settle(state, state->floor, ALL);
}
