// Exact ranks in a sample that is too large for one CTA.
//
// Each rank that is wanted has a State of its own, for the range that is left of it, its counts and
// the magnitude that is found. The first counts are the same for all, and lie in the first State.
// Three kernels count finer and finer; the last CTA of each narrows the ranges.
#pragma once

#include "_select.cuh"

constexpr int RANKS = 15;        // that a kernel takes; as in _select.py
constexpr int RANK_LEVELS = 3;   // 11 bits, 11, and 9
constexpr u32 RANK_BITS = 31;    // of a magnitude

struct Ranks {
    u64 of[RANKS];
};

// One of them, without an array that would lie in memory to be indexed.
DEVICE u64 rank_of(const Ranks& ranks, int which) {
    u64 rank = 0;
    UNROLLED for (int r = 0; r < RANKS; ++r)
        if (r == which) rank = ranks.of[r];
    return rank;
}

// Of ranks from `first` on.
KERNEL(begin_ranks, CTA, (State* ranked, int first, int count, Ranks ranks)) {
    for (int r = int(blockIdx.x); r < count; r += int(gridDim.x)) {
        State* state = ranked + first + r;
        u64* counts = state->counts[0];
        for (int bin = int(threadIdx.x); bin < RANK_LEVELS * BINS; bin += CTA) counts[bin] = 0;
        if (threadIdx.x != 0) continue;
        state->wanted = rank_of(ranks, r), state->floor = 0;
        state->low = 0, state->width = RANK_BITS, state->shift = RANK_BITS - BIN_BITS;
        for (int level = 0; level < RANK_LEVELS; ++level) state->arrived[level] = 0;
    }
}

// All threads of a CTA come here.
DEVICE void narrow_rank(State* state, const u64* counts) {
    Crossing found = crossing(counts, state->wanted);
    if (threadIdx.x == 0) narrow(state, found);
}

KERNEL(
    draw_sample, CTA,
    (const void* x, int kind, float* residual, float loss_scale, float back, i64 n, u32* sample,
     i64 size, State* ranked, int ranks)) {
    __shared__ u32 counts[BINS];
    clear_counts(counts);
    Source from = {{x, kind}, {residual, loss_scale, back}, n};
    draw(from, size, team_number<1>(), team_count<1>(), [&](i64 number, u32 bits) {
        sample[number] = bits;
        atomicAdd(counts + (bits >> (RANK_BITS - BIN_BITS)), 1u);
    });
    add_counts(counts, ranked->counts[0]);
    if (!is_last_cta(ranked->arrived)) return;
    for (int r = 0; r < ranks; ++r) narrow_rank(ranked + r, ranked->counts[0]);
}

// Count the ranges that are left in smaller bins; true for the last CTA to finish, whose first
// thread knows the thresholds after the last level.
DEVICE bool refined(const u32* sample, i64 size, State* ranked, int ranks, int level) {
    __shared__ u32 counts[BINS];
    for (int r = 0; r < ranks; ++r) {
        clear_counts(counts);
        u32 low = ranked[r].low, shift = ranked[r].shift, width = ranked[r].width;
        for (i64 i = team_number<1>(); i < size; i += team_count<1>()) {
            u32 above = sample[i] - low;
            if (above >> width == 0) atomicAdd(counts + (above >> shift), 1u);
        }
        add_counts(counts, ranked[r].counts[level]);
    }
    if (!is_last_cta(ranked->arrived + level)) return false;
    for (int r = 0; r < ranks; ++r) narrow_rank(ranked + r, ranked[r].counts[level]);
    return true;
}

KERNEL(
    refine_ranks, CTA, (const u32* sample, i64 size, State* ranked, int ranks)) {
    refined(sample, size, ranked, ranks, 1);
}

// How many elements reach each of several thresholds.

constexpr int THRESHOLDS = 16;  // at a time

DEVICE void compare_each(u32 bits, const u32* thresholds, u32 (&reaching)[THRESHOLDS]) {
    for (int t = 0; t < THRESHOLDS; ++t) reaching[t] += bits >= thresholds[t];
}

// Among the marked, or among all of a vector that has been surveyed if `marks` is null. Calls
// add(t, count) by one thread; what none reaches, as NONE, may be left out. The thresholds lie in
// shared memory; all threads of a CTA come here.
template <class Add>
DEVICE void count_reaching(
    const Source& from, const u64* marks, const u32* thresholds, Add add) {
    u32 reaching[THRESHOLDS] = {};
    if (marks) {
        i64 words = (from.n + TILE - 1) / TILE * WORDS;
        for (i64 word = team_number<1>(); word < words; word += team_count<1>())
            for_bits(marks[word], [&](int bit) {
                u32 bits = magnitude_bits(kept(from, 64 * word + bit));
                compare_each(bits, thresholds, reaching);
            });
    } else {
        for (i64 i = team_number<1>(); i < from.n; i += team_count<1>())
            compare_each(magnitude_bits(kept(from, i)), thresholds, reaching);
    }
    for (int t = 0; t < THRESHOLDS; ++t) {
        u64 count = cta_scan(u64(reaching[t])).total;
        if (threadIdx.x == 0 && count) add(t, count);
    }
}
