// Selection; see compressa.kernels.topk and .select for what is chosen, and _select.cuh for how.
//
// A sample tells from which magnitude on elements may be among the largest. The survey is the one
// pass over all of the memory: it leaves q in the residual, and marks and counts candidates. The
// last CTA to finish a kernel decides what the next one does, and one that has nothing to do ends
// at once: a second survey where the sample was wrong, and finer counts until one magnitude is
// left. Then the chosen are counted in every tile, and written in order.

#include "_in_order.cuh"
#include "_select.cuh"

constexpr int SAMPLE = 8192;  // as in _select.py
constexpr double SURELY = 0.9;  // of a sample's root mean square: seldom more than the vector's

// ---- sample ----------------------------------------------------------------------------------

DEVICE void draw_sample(const Source& from, u32* sample) {
    draw(from, SAMPLE, threadIdx.x, CTA, [&](i64 number, u32 bits) { sample[number] = bits; });
    __syncthreads();
}

// Bits of the one of a rank; zero where there are not so many.
DEVICE u32 nth_largest(const u32* sample, u32* counts, u64 rank) {
    u32 low = 0, width = 31;
    while (width) {
        u32 shift = width > BIN_BITS ? width - BIN_BITS : 0;
        clear_counts(counts);
        for (int i = int(threadIdx.x); i < SAMPLE; i += CTA) {
            u32 above = sample[i] - low;
            if (above >> width == 0) atomicAdd(counts + (above >> shift), 1u);
        }
        __syncthreads();
        Crossing found = crossing(counts, rank);
        if (found.bin < 0) return 0;
        low += u32(found.bin) << shift, rank -= found.above, width = shift;
    }
    return low;
}

// A floor that the relative one is hardly ever below, or never.
DEVICE u32 likely_floor(const u32* sample, int reference, double threshold) {
    u32 largest = 0;
    double squares = 0.0;
    for (int i = int(threadIdx.x); i < SAMPLE; i += CTA) {
        double q = __uint_as_float(sample[i]);
        squares += q * q, largest = max(largest, sample[i]);
    }
    float most = __uint_as_float(team_max<CTA>(largest));
    double rms = sqrt(cta_scan(squares).total / SAMPLE);
    u32 floor = floor_of(threshold, reference == RMS ? SURELY * rms : double(most), most);
    return is_finite(most) && floor < INFINITE ? floor : 0;
}

// One CTA. Without ranks there is no sample.
KERNEL(
    begin, CTA,
    (const void* x, int kind, float* residual, float loss_scale, float back, i64 n, State* state,
     int low_rank, int high_rank, int reference, double threshold)) {
    __shared__ u32 sample[SAMPLE], counts[BINS];
    Source from = {{x, kind}, {residual, loss_scale, back}, n};
    u32 floor = reference == ONE ? magnitude_bits(float(threshold)) : 0;
    u32 least = floor, high = LARGEST;
    if (low_rank) {
        draw_sample(from, sample);
        least = max(least, nth_largest(sample, counts, u64(low_rank)));
        if (reference != ONE) least = max(least, likely_floor(sample, reference, threshold));
        if (high_rank) high = nth_largest(sample, counts, u64(high_rank));
    }
    begin_survey(state, residual, floor, least, least <= high ? high : LARGEST);
}

// ---- survey ----------------------------------------------------------------------------------

// Of each tile the sum of its squares, in the written order: while its elements are in registers, a
// part at a time goes through shared memory.
struct Squares {
    double* sums;  // of all tiles
    double sum = 0.0;

    METHOD void take(int step, int size, const float (&q)[AT_ONCE][4]) {
        constexpr int PIECE = AT_ONCE * STEP;
        float* stage = team_stage<WARP, PIECE / WARP>();
        int lane = team_thread<WARP>();
        __syncwarp();  // until the part before is read by all
        UNROLLED for (int b = 0; b < AT_ONCE; ++b)
            store4<true>(stage, 4 * lane + b * STEP, 4, q[b]);
        __syncwarp();
        sum = lane_sum(stage, lane, min(PIECE, size - step), sum, add_square);
    }

    METHOD void end(i64 tile, i64, int) {
        double all = halved(sum);
        if (team_thread<WARP>() == 0) sums[tile] = all;
        sum = 0.0;
    }
};

// For the last CTA of the first survey.
template <bool SUMMED>
DEVICE void find_floor(
    const Source& from, State* state, const double* squares, int reference, double threshold,
    u64 most) {
    i64 tiles = (from.n + TILE - 1) / TILE;
    float top = __uint_as_float(fresh(&state->largest));
    Crossing found = crossing(state->counts[0], max(most, u64(1)));
    double size = SUMMED ? sqrt(sum_in_order(squares, tiles) / double(from.n)) : double(top);
    if (threadIdx.x != 0) return;
    if (reference != ONE) state->floor = floor_of(threshold, size, top);
    judge(state, found, most);
}

#define SURVEY(name, SUMMED, ...)                                                                 \
    CROWDED(                                                                                      \
        name, CTA, 4,                                                                             \
        (const void* __restrict__ x, int kind, float* __restrict__ residual, float loss_scale,    \
         float back, i64 n, State* state, u64* __restrict__ marks, double* squares, int reference, \
         double threshold, u64 most)) {                                                           \
        Source from = {{x, kind}, {residual, loss_scale, back}, n};                               \
        if (surveyed<true>(from, state, marks, __VA_ARGS__))                                      \
            find_floor<SUMMED>(from, state, squares, reference, threshold, most);                 \
    }

SURVEY(survey_once, false, Unmeasured())
SURVEY(survey_with_squares, true, Squares{squares})

// For as many as the first one was for.
KERNEL(
    survey_again, CTA,
    (const void* __restrict__ x, int kind, float* __restrict__ residual, float loss_scale,
     float back, i64 n, State* state, u64* __restrict__ marks)) {
    if (state->todo != SURVEY_AGAIN) return;
    Source from = {{x, kind}, {residual, loss_scale, back}, n};
    if (!surveyed<false>(from, state, marks)) return;
    u64 most = state->wanted;
    Crossing found = crossing(state->counts[1], max(most, u64(1)));
    if (threadIdx.x == 0) judge(state, found, most);
}

// ---- threshold -------------------------------------------------------------------------------

// Count the candidates of the range that is left, in smaller bins.
KERNEL(
    refine, CTA,
    (const void* x, int kind, float* residual, float loss_scale, float back, i64 n, State* state,
     const u64* marks, int level)) {
    if (state->todo != REFINE) return;
    __shared__ u32 counts[BINS];
    clear_counts(counts);
    Source from = {{x, kind}, {residual, loss_scale, back}, n};
    u32 begin = state->low, shift = state->shift, width = state->width;
    i64 tiles = (n + TILE - 1) / TILE;
    for (i64 tile = team_number<WARP>(); tile < tiles; tile += team_count<WARP>()) {
        i64 word = tile * WORDS + team_thread<WARP>();
        for_bits(marks[word], [&](int bit) {
            u32 above = magnitude_bits(kept(from, 64 * word + bit)) - begin;
            if (above >> width == 0) atomicAdd(counts + (above >> shift), 1u);
        });
    }
    add_counts(counts, state->counts[level]);
    if (!is_last_cta(state->arrived + level)) return;
    Crossing found = crossing(state->counts[level], state->wanted);
    if (threadIdx.x == 0) narrow(state, found);
}

// ---- chosen ----------------------------------------------------------------------------------

struct Chosen {
    u64 above, equal;  // candidates of a word: larger than the threshold, and as large
};

DEVICE Chosen compared(const Source& from, i64 word, u64 mark, u32 threshold) {
    Chosen chosen = {0, 0};
    for_bits(mark, [&](int bit) {
        u32 bits = magnitude_bits(kept(from, 64 * word + bit));
        if (bits > threshold) chosen.above |= 1ull << bit;
        if (bits == threshold) chosen.equal |= 1ull << bit;
    });
    return chosen;
}

// Two counts in one number: at most 16384 each in the tiles that a CTA takes at a time.
DEVICE u32 both(const Chosen& chosen) {
    return u32(__popcll(chosen.above)) << 16 | u32(__popcll(chosen.equal));
}

DEVICE u64 widened_both(u32 both) { return u64(both >> 16) << 32 | (both & 0xFFFFu); }

DEVICE Chosen chosen_of_group(
    const Source& from, const u64* marks, i64 group, u32 threshold, i64& word) {
    i64 tile = group * TILES + int(threadIdx.x) / WARP;
    word = tile * WORDS + team_thread<WARP>();
    u64 mark = tile * TILE < from.n ? marks[word] : 0;
    return compared(from, word, mark, threshold);
}

// Sums of what comes before each group of tiles; and the number of all that are chosen. One CTA.
DEVICE void place_groups(State* state, const u32* sums, u64* before, i64 groups) {
    constexpr int EACH = 8;
    u64 carried = 0, above = 0, equal = 0;
    for (i64 low = 0; low < groups; low += CTA * EACH) {
        i64 first = low + i64(threadIdx.x) * EACH;
        u64 own[EACH], all = 0;
        for (int e = 0; e < EACH; ++e) {
            own[e] = first + e < groups ? widened_both(fresh(sums + first + e)) : 0;
            all += own[e];
        }
        Scanned<u64> scanned = cta_scan(all);
        u64 before_own = carried + scanned.before;
        for (int e = 0; e < EACH; ++e) {
            if (first + e < groups) before[first + e] = before_own;
            before_own += own[e];
        }
        carried += scanned.total;
        // Apart, since 2^32 that are equal would not fit half a word.
        above += scanned.total >> 32, equal += scanned.total & 0xFFFFFFFFu;
    }
    if (threadIdx.x == 0) state->count = above + min(equal, state->ties);
}

KERNEL(
    count_chosen, CTA,
    (const void* x, int kind, float* residual, float loss_scale, float back, i64 n, State* state,
     const u64* marks, u32* sums, u64* before, i64 room)) {
    if (state->largest >= INFINITE) {
        if (blockIdx.x == 0 && threadIdx.x == 0) state->count = u64(min(room, i64(1)));
        return;
    }
    Source from = {{x, kind}, {residual, loss_scale, back}, n};
    i64 groups = (n + TILES * TILE - 1) / (TILES * TILE);
    for (i64 group = blockIdx.x; group < groups; group += gridDim.x) {
        i64 word;
        Chosen chosen = chosen_of_group(from, marks, group, state->threshold, word);
        u32 sum = cta_scan(both(chosen)).total;
        if (threadIdx.x == 0) sums[group] = sum;
    }
    if (is_last_cta(state->arrived + CHOSEN)) place_groups(state, sums, before, groups);
}

// Something is not finite: all that is sent is a NaN, and zeros where there is a number to send.
DEVICE void write_overflow(
    float* residual, const State* state, u32* indices, float* values, i64 most) {
    i64 thread = team_number<1>();
    for (i64 j = thread; j < most; j += team_count<1>())
        indices[j] = u32(j), values[j] = j ? 0.0f : quiet_nan();
    if (thread == 0 && residual) residual[0] = state->first;
}

KERNEL(
    write_chosen, CTA,
    (const void* __restrict__ x, int kind, float* __restrict__ residual, float loss_scale,
     float back, i64 n, const State* __restrict__ state, const u64* __restrict__ marks,
     const u64* __restrict__ before, u32* __restrict__ indices, float* __restrict__ values,
     i64 room, bool fixed)) {
    if (state->largest >= INFINITE)
        return write_overflow(residual, state, indices, values, fixed ? room : min(room, i64(1)));
    Source from = {{x, kind}, {residual, loss_scale, back}, n};
    u64 ties = state->ties;
    i64 groups = (n + TILES * TILE - 1) / (TILES * TILE);
    for (i64 group = blockIdx.x; group < groups; group += gridDim.x) {
        i64 word;
        Chosen chosen = chosen_of_group(from, marks, group, state->threshold, word);
        u64 both_before = before[group] + widened_both(cta_scan(both(chosen)).before);
        u64 above = both_before >> 32, equal = both_before & 0xFFFFFFFFu;
        for_bits(chosen.above | chosen.equal, [&](int bit) {
            bool tie = chosen.equal >> bit & 1u;
            if (!tie || equal < ties) {
                i64 i = 64 * word + bit;
                u64 at = above + min(equal, ties);
                indices[at] = u32(i), values[at] = sent(from, i, kept(from, i));
            }
            if (tie) ++equal;
            else ++above;
        });
    }
}

// ---- by given indices ------------------------------------------------------------------------

struct Noted {
    u32 largest;
    float first;  // what the residual held where a NaN will be sent
};

// One CTA.
KERNEL(
    note_first, CTA,
    (const float* residual, i64 n, const u32* indices, i64 count, Noted* noted)) {
    if (threadIdx.x != 0) return;
    noted->largest = 0;
    if (residual && count && indices[0] < n) noted->first = residual[indices[0]];
}

template <bool EVEN>
DEVICE u32 keep_fours(const Source& from) {
    u32 largest = 0;
    for_batches(from.n, [&](const Batch& batch) {
        constexpr int ROW = 4 * CTA;
        float q[FOURS_A_BATCH][4];
        int count = int(min(i64(FOURS_A_BATCH * ROW), from.n - batch.i[0]));
        surveyed4<true, EVEN>(from, batch.i[0], count, ROW, q);
        UNROLLED for (int v = 0; v < FOURS_A_BATCH; ++v) {
            for (int u = 0; u < 4; ++u) largest = max(largest, magnitude_bits(q[v][u]));
            if (from.feedback.residual)
                keep4<EVEN>(from.feedback.residual, batch.i[v], batch.count[v], q[v]);
        }
    });
    return largest;
}

KERNEL(
    keep_all, CTA,
    (const void* __restrict__ x, int kind, float* __restrict__ residual, float loss_scale,
     float back, i64 n, Noted* noted)) {
    Source from = {{x, kind}, {residual, loss_scale, back}, n};
    u32 largest = are_even(from) ? keep_fours<true>(from) : keep_fours<false>(from);
    largest = team_max<CTA>(largest);
    if (threadIdx.x == 0) atomicMax(&noted->largest, largest);
}

// The residual is not __restrict__: indices are checked later, and may repeat.
KERNEL(
    take_out, CTA,
    (const void* __restrict__ x, int kind, float* residual, float loss_scale, float back, i64 n,
     const u32* __restrict__ indices, float* __restrict__ values, i64 count,
     const Noted* __restrict__ noted)) {
    Source from = {{x, kind}, {residual, loss_scale, back}, n};
    bool finite = noted->largest < INFINITE;
    for (i64 j = team_number<1>(); j < count; j += team_count<1>()) {
        i64 i = indices[j];
        if (i >= n) continue;  // the check of the indices will tell
        values[j] = finite ? sent(from, i, kept(from, i)) : j ? 0.0f : quiet_nan();
        if (!finite && j == 0 && residual) residual[i] = noted->first;
    }
}
