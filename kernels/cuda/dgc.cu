// DGC's selection; see compressa.kernels.dgc for what is chosen, and select.cu for how.
//
// A sample says the first threshold, exactly. The survey marks and counts what reaches it. If that
// is far too little, one more pass counts all that the threshold may be lowered to at once, and the
// second survey marks what reaches the right one.

#include "_ranks.cuh"
#include "_select.cuh"

constexpr int ADJUSTMENTS = 10;  // as in compressa.kernels.dgc
static_assert(ADJUSTMENTS <= THRESHOLDS, "they are counted together");

struct Aim {
    u64 k, room;
    double fewest, most;  // elements, between which a threshold is left as it is
};

// `reaching` has a count for each adjustment.
KERNEL(
    begin_dgc, CTA,
    (const u32* sample, i64 size, State* ranked, int ranks, const float* residual, State* state,
     u64* reaching)) {
    if (!refined(sample, size, ranked, ranks, RANK_LEVELS - 1)) return;
    u32 first = team_told<CTA>(max(ranked->threshold, 1u));
    if (threadIdx.x < ADJUSTMENTS) reaching[threadIdx.x] = 0;
    begin_survey(state, residual, first, first, LARGEST);
}

// Choose all that reach the floor, if they are not far too many.
DEVICE void aim_at(State* state, const Crossing& found, const Aim& aim) {
    if (has_overflown(state))
        state->todo = NOTHING;
    else if (double(found.total) < aim.fewest && state->floor > 1)
        state->todo = COUNT_ALL;
    else if (double(found.total) > aim.most)
        judge(state, found, aim.k);
    else
        settle(state, state->floor, ALL);
}

CROWDED(
    survey_dgc, CTA, 4,
    (const void* __restrict__ x, int kind, float* __restrict__ residual, float loss_scale,
     float back, i64 n, State* state, u64* __restrict__ marks, u64 k, u64 room, double fewest,
     double most)) {
    Source from = {{x, kind}, {residual, loss_scale, back}, n};
    if (!surveyed<true>(from, state, marks)) return;
    Crossing found = crossing(state->counts[0], k);
    if (threadIdx.x == 0) aim_at(state, found, {k, room, fewest, most});
}

// The thresholds that come after the floor, the next one first.
DEVICE void list_lowered(u32 floor, double share, u32* thresholds) {
    for (int t = 0; t < THRESHOLDS; ++t) {
        floor = max(magnitude_bits(float(share * double(__uint_as_float(floor)))), 1u);
        thresholds[t] = t < ADJUSTMENTS ? floor : NONE;
    }
}

DEVICE void lower(State* state, const u32* thresholds, const u64* reaching, const Aim& aim) {
    u64 count = 0;
    for (int t = 0; t < ADJUSTMENTS; ++t) {
        count = fresh(reaching + t), state->floor = thresholds[t];
        if (double(count) >= aim.fewest || thresholds[t] == 1) break;
    }
    state->wanted = double(count) > aim.most ? aim.k : aim.room;
    survey_from(state, state->floor);
}

KERNEL(
    lower_threshold, CTA,
    (const void* x, int kind, float* residual, float loss_scale, float back, i64 n, State* state,
     const u64*, u64 k, u64 room, double fewest, double most, double share, u64* reaching)) {
    if (state->todo != COUNT_ALL) return;
    __shared__ u32 thresholds[THRESHOLDS];
    if (threadIdx.x == 0) list_lowered(state->floor, share, thresholds);
    __syncthreads();
    Source from = {{x, kind}, {residual, loss_scale, back}, n};
    count_reaching(
        from, nullptr, thresholds, [&](int t, u64 count) { atomicAdd(reaching + t, count); });
    if (!is_last_cta(state->arrived + COUNTED)) return;
    if (threadIdx.x == 0) lower(state, thresholds, reaching, {k, room, fewest, most});
}
