// SIDCo's selection; see compressa.kernels.sidco for what is chosen, and select.cu for how.
//
// A sample says where the stages begin, and from which magnitude on elements are likely to be
// chosen. The survey adds up what each stage fits, by tiles, which are the blocks of the written
// order. Then all stages are fitted at once, and what reaches their thresholds is counted together,
// and what is not 0: among the candidates, if these are enough to tell.

#include "_in_order.cuh"
#include "_ranks.cuh"
#include "_select.cuh"

constexpr int STAGE_WORDS = 4;  // as in sidco.py
constexpr u32 SMALLEST = 1;     // the bits of the least magnitude above 0
constexpr double TOLERANCE = 0.2;  // as in compressa.kernels.sidco

struct Stage {
    double total;  // of the magnitudes that reach the base
    u64 above;     // how many do
    u64 reaching;  // how many reach the threshold
    u32 base, threshold;
};
static_assert(sizeof(Stage) == 8 * STAGE_WORDS, "the launcher has memory for it");

// The first rank is that of the smallest candidate, and the others are those of the bases.
KERNEL(
    begin_sidco, CTA,
    (const u32* sample, i64 size, State* ranked, int ranks, const float* residual, State* state,
     Stage* stages)) {
    if (!refined(sample, size, ranked, ranks, RANK_LEVELS - 1)) return;
    __syncthreads();  // until the first thread has noted what was found
    for (int s = int(threadIdx.x); s < ranks; s += CTA) {
        u32 base = s ? max(fresh(&ranked[s].threshold), 1u) : 0;
        stages[s] = {0.0, 0, 0, base, NONE};
    }
    begin_survey(state, residual, 1, max(fresh(&ranked->threshold), 1u), LARGEST);
}

// ---- survey ----------------------------------------------------------------------------------

// What of a tile reaches each base, in the written order: a half of the warp for a stage.
DEVICE void add_up_tile(
    const Source& from, i64 low, int size, const Stage* stages, int count, double* totals,
    u32* numbers, i64 tiles) {
    __syncwarp();  // until the lanes' parts of q can be read by the others
    int lane = team_thread<WARP>() % LANES, half = team_thread<WARP>() / LANES;
    for (int first = 0; first < count; first += WARP / LANES) {
        int s = first + half;
        u32 base = s < count ? stages[s].base : NONE, number = 0;
        double total = 0.0;
        for (int i = lane; i < size; i += LANES) {
            u32 bits = magnitude_bits(kept(from, low + i));
            total += bits >= base ? double(__uint_as_float(bits)) : 0.0;
            number += bits >= base;
        }
        for (int step = LANES / 2; step; step /= 2) {
            total += __shfl_xor_sync(WHOLE_WARP, total, step);
            number += __shfl_xor_sync(WHOLE_WARP, number, step);
        }
        if (lane == 0 && s < count)
            totals[s * tiles + low / TILE] = total, numbers[s * tiles + low / TILE] = number;
    }
}

struct ByStage {
    const Source& from;
    const Stage* stages;
    int count;
    double* totals;
    u32* numbers;
    i64 tiles;

    METHOD void take(int, int, const float (&)[AT_ONCE][4]) {}
    METHOD void end(i64, i64 low, int size) {
        add_up_tile(from, low, size, stages, count, totals, numbers, tiles);
    }
};

// The residual is not __restrict__: lanes read what others of their warp have just written.
CROWDED(
    survey_sidco, CTA, 4,
    (const void* __restrict__ x, int kind, float* residual, float loss_scale, float back, i64 n,
     State* state, u64* __restrict__ marks, const Stage* stages, int count, double* totals,
     u32* numbers)) {
    Source from = {{x, kind}, {residual, loss_scale, back}, n};
    i64 tiles = (n + TILE - 1) / TILE;
    surveyed<true>(from, state, marks, ByStage{from, stages, count, totals, numbers, tiles});
}

// ---- fit -------------------------------------------------------------------------------------

DEVICE u32 stage_threshold(const Stage& stage, u64 k, double largest) {
    double base = __uint_as_float(stage.base), above = double(stage.above);
    double fitted = base + (stage.total / above - base) * log(above / double(k));
    fitted = largest < fitted ? largest : fitted;
    return magnitude_bits(float(0x1p-149 > fitted ? 0x1p-149 : fitted));
}

// The thresholds of all stages that there are; returns the smallest.
DEVICE u32 fit(Stage* stages, int count, u64 k, u32 largest) {
    u32 smallest = NONE;
    for (int s = 0; s < count; ++s) {
        Stage stage = {fresh(&stages[s].total), fresh(&stages[s].above), 0, stages[s].base, NONE};
        if (s && stage.above <= k) break;
        stages[s].threshold = stage_threshold(stage, k, double(__uint_as_float(largest)));
        smallest = min(smallest, stages[s].threshold);
    }
    return smallest;
}

// A CTA for each stage. More than `enough` elements are too many, however many they are.
KERNEL(
    fit_stages, CTA,
    (State* state, Stage* stages, int count, const double* totals, const u32* numbers, i64 tiles,
     u64 k, u64 enough)) {
    for (int s = int(blockIdx.x); s < count; s += int(gridDim.x)) {
        double total = sum_in_order(totals + s * tiles, tiles);
        u64 above = 0;
        for (i64 tile = threadIdx.x; tile < tiles; tile += CTA) above += numbers[s * tiles + tile];
        above = cta_scan(above).total;
        if (threadIdx.x == 0) stages[s].total = total, stages[s].above = above;
    }
    if (!is_last_cta(state->arrived + FITTED)) return;
    u64 candidates = crossing(state->counts[0], 1).total;
    if (threadIdx.x != 0) return;
    stages[count] = {0.0, 0, 0, 0, SMALLEST};
    bool misses = fit(stages, count, k, fresh(&state->largest)) < state->least || candidates <= k;
    state->todo = misses && candidates <= enough ? COUNT_ALL : COUNT_MARKED;
    if (has_overflown(state)) state->todo = NOTHING;
}

// The first stage that is good, or the last.
DEVICE Stage best_stage(const Stage* stages, int count, u64 k) {
    Stage best = stages[0];
    for (int s = 0; s < count && stages[s].threshold != NONE; ++s) {
        best = stages[s], best.reaching = fresh(&stages[s].reaching);
        if (fabs(double(best.reaching) - double(k)) <= TOLERANCE * double(k)) break;
    }
    return best;
}

DEVICE void choose(State* state, const Stage& best, const Crossing& found, u64 room) {
    if (best.threshold >= state->least && best.reaching <= room)
        settle(state, best.threshold, ALL);
    else
        judge(state, found, room);
}

KERNEL(
    choose_stage, CTA,
    (const void* x, int kind, float* residual, float loss_scale, float back, i64 n, State* state,
     const u64* marks, Stage* stages, int count, u64 k, u64 room)) {
    if (state->todo != COUNT_ALL && state->todo != COUNT_MARKED) return;
    __shared__ u32 thresholds[THRESHOLDS];
    Source from = {{x, kind}, {residual, loss_scale, back}, n};
    const u64* among = state->todo == COUNT_MARKED ? marks : nullptr;
    for (int first = 0; first <= count; first += THRESHOLDS) {
        int t = int(threadIdx.x), s = first + t;
        __syncthreads();  // until the last thresholds are read by all
        if (t < THRESHOLDS) thresholds[t] = s <= count ? stages[s].threshold : NONE;
        __syncthreads();
        count_reaching(from, among, thresholds, [&](int t, u64 reaching) {
            atomicAdd(&stages[first + t].reaching, reaching);
        });
    }
    if (!is_last_cta(state->arrived + COUNTED)) return;
    Stage best = best_stage(stages, count, k);
    bool too_few = double(k) - double(best.reaching) > TOLERANCE * double(k);
    bool exactly = too_few || fresh(&stages[count].reaching) <= k;
    u64 most = exactly ? min(k, room) : room;
    Crossing found = crossing(state->counts[0], max(most, u64(1)));
    if (threadIdx.x != 0) return;
    state->floor = exactly ? SMALLEST : best.threshold;
    if (exactly) judge(state, found, most);
    else choose(state, best, found, most);
}
