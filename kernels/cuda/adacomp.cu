// AdaComp's selection; see compressa.kernels.adacomp for what is chosen, and select.cu for how.
//
// What matters in a bin is known once all of the bin is. Each CTA takes some whole bins, and keeps
// them in registers between the two looks; bins that do not fit there are read twice, the second
// time by a kernel of its own. What matters is marked and counted as candidates are elsewhere, and
// the largest of them are chosen as from there on.

#include "_select.cuh"

constexpr int STRETCH = 2048;  // elements that a CTA takes at a time; as in adacomp.py
constexpr int TIMES = STRETCH / (4 * CTA);
constexpr int MARK_WORDS = STRETCH / 32 + 1;

KERNEL(
    begin_adacomp, CTA,
    (const float* residual, State* state, u64* marks, i64 words, u32* largest, i64 bins)) {
    for (i64 word = team_number<1>(); word < words; word += team_count<1>()) marks[word] = 0;
    for (i64 bin = team_number<1>(); bin < bins; bin += team_count<1>()) largest[bin] = 0;
    if (blockIdx.x == 0) begin_survey(state, residual, 1, 1, LARGEST);
}

// A part of the vector: whole bins, or a part of a large one and perhaps of the next.
struct Stretch {
    i64 low;
    int size;
    int first, others;  // elements of the first bin, and of each that follows
};

struct InBin {
    int bin;   // of those that the stretch begins with
    int left;  // elements from here to the bin's end
};

DEVICE InBin bin_at(const Stretch& stretch, int i) {
    if (i < stretch.first) return {0, stretch.first - i};
    int beyond = i - stretch.first;
    return {1 + beyond / stretch.others, stretch.others - beyond % stretch.others};
}

DEVICE void advance(const Stretch& stretch, InBin& at) {
    if (--at.left == 0) ++at.bin, at.left = stretch.others;
}

// What a thread has of a stretch: q, and the gradient alone.
struct Fours {
    float q[TIMES][4], g[TIMES][4];
};

DEVICE int own(int t) { return 4 * (t * CTA + int(threadIdx.x)); }

// EVEN: the stretch begins at an address that allows vectors.
template <bool EVEN>
DEVICE void ask_fours(
    const Source& from, const Stretch& stretch, u32 (&x)[TIMES][4], float (&left)[TIMES][4]) {
    const float* residual = from.feedback.residual;
    ask_raw<EVEN>(from.x, stretch.low + own(0), stretch.size - own(0), 4 * CTA, x);
    if (!residual) return;
    UNROLLED for (int t = 0; t < TIMES; ++t)
        load4<EVEN>(residual, stretch.low + own(t), stretch.size - own(t), left[t]);
}

// All is asked for before any is waited for. Surveyed: the residual holds q.
template <bool SURVEYED>
DEVICE void load_fours(const Source& from, const Stretch& stretch, bool even, Fours& fours) {
    u32 raw[TIMES][4];
    float left[TIMES][4] = {};
    const Feedback& feedback = from.feedback;
    if (even) ask_fours<true>(from, stretch, raw, left);
    else ask_fours<false>(from, stretch, raw, left);
    UNROLLED for (int t = 0; t < TIMES; ++t) {
        widen_raw4(raw[t], from.x.kind, fours.g[t]);
        for (int u = 0; u < 4; ++u) {
            float x = fours.g[t][u], alone = x * feedback.back, both = alone;
            if (feedback.residual)
                both = SURVEYED ? left[t][u]
                                : (x + feedback.loss_scale * left[t][u]) * feedback.back;
            fours.q[t][u] = both, fours.g[t][u] = alone;
        }
    }
}

// The largest magnitude in each bin, in shared or other memory that begins at zero; returns the
// largest of this thread's. All threads of a CTA come here.
DEVICE u32 find_largest(const Stretch& stretch, const Fours& fours, u32* largest) {
    u32 seen = 0;
    for (int t = 0; t < TIMES; ++t) {
        int first = own(t) - 4 * team_thread<WARP>(), last = min(first + 4 * WARP, stretch.size);
        if (first >= stretch.size) break;
        int bin = bin_at(stretch, first).bin;
        bool whole = bin == bin_at(stretch, last - 1).bin;  // the warp's elements have one bin
        InBin at = bin_at(stretch, own(t));
        u32 top = 0;
        for (int u = 0; u < 4 && own(t) + u < stretch.size; ++u) {
            int before = at.bin;
            top = max(top, magnitude_bits(fours.q[t][u]));
            advance(stretch, at);
            if (whole || at.bin == before) continue;
            atomicMax(largest + before, top);
            seen = max(seen, top), top = 0;
        }
        seen = max(seen, top);
        if (whole) {
            top = team_max<WARP>(top);
            if (team_thread<WARP>() == 0) atomicMax(largest + bin, top);
        } else if (top) {
            atomicMax(largest + at.bin, top);
        }
    }
    return seen;
}

DEVICE void keep_fours(float* residual, const Stretch& stretch, bool even, const Fours& fours) {
    for (int t = 0; t < TIMES && residual; ++t) {
        i64 low = stretch.low + own(t);
        if (even) keep4<true>(residual, low, stretch.size - own(t), fours.q[t]);
        else keep4<false>(residual, low, stretch.size - own(t), fours.q[t]);
    }
}

// Mark and count what matters; all threads of a CTA come here.
DEVICE void mark_stretch(
    const Stretch& stretch, const Fours& fours, const u32* largest, u32 begin, u32 shift,
    u32* marks, u32* counts) {
    __shared__ u32 mine[MARK_WORDS];
    for (int word = int(threadIdx.x); word < MARK_WORDS; word += CTA) mine[word] = 0;
    __syncthreads();
    int offset = int(stretch.low % 32);
    for (int t = 0; t < TIMES; ++t) {
        InBin at = bin_at(stretch, own(t));
        for (int u = 0; u < 4 && own(t) + u < stretch.size; ++u, advance(stretch, at)) {
            float q = fours.q[t][u];
            u32 bits = magnitude_bits(q), repeated = magnitude_bits(q + fours.g[t][u]);
            if (bits == 0 || repeated < largest[at.bin]) continue;
            int bit = offset + own(t) + u;
            atomicAdd(counts + ((bits - begin) >> shift), 1u);
            atomicOr(mine + bit / 32, 1u << bit % 32);
        }
    }
    __syncthreads();
    u32* words = marks + stretch.low / 32;
    for (int word = int(threadIdx.x); word < MARK_WORDS; word += CTA)
        if (mine[word]) atomicOr(words + word, mine[word]);  // the ends have other stretches' bits
    __syncthreads();
}

// All threads of a CTA come here.
DEVICE void finish_marks(State* state, u32 largest, const u32* counts, u64 room) {
    largest = team_max<CTA>(largest);
    if (threadIdx.x == 0) atomicMax(&state->largest, largest);
    add_counts(counts, state->counts[0]);
    if (!is_last_cta(state->arrived)) return;
    Crossing found = crossing(state->counts[0], max(room, u64(1)));
    if (threadIdx.x == 0) judge(state, found, room);
}

// ---- bins that fit -----------------------------------------------------------------------------

// `bins` at a time, which fit a stretch.
KERNEL(
    mark_bins, CTA,
    (const void* __restrict__ x, int kind, float* __restrict__ residual, float loss_scale,
     float back, i64 n, State* state, u64* marks, i64 bin_elems, int bins, u64 room)) {
    __shared__ u32 counts[BINS], largest[STRETCH];
    clear_counts(counts);
    Source from = {{x, kind}, {residual, loss_scale, back}, n};
    u32 begin = state->low, shift = state->shift, seen = 0;
    i64 elems = bins * bin_elems;
    bool even = elems % 4 == 0 && are_even(from);
    for (i64 low = blockIdx.x * elems; low < n; low += gridDim.x * elems) {
        Stretch stretch = {low, int(min(elems, n - low)), int(bin_elems), int(bin_elems)};
        Fours fours;
        load_fours<false>(from, stretch, even, fours);
        for (int bin = int(threadIdx.x); bin < bins; bin += CTA) largest[bin] = 0;
        __syncthreads();
        seen = max(seen, find_largest(stretch, fours, largest));
        keep_fours(residual, stretch, even, fours);
        __syncthreads();
        u32* words = reinterpret_cast<u32*>(marks);
        mark_stretch(stretch, fours, largest, begin, shift, words, counts);
    }
    finish_marks(state, seen, counts, room);
}

// ---- larger bins -------------------------------------------------------------------------------

DEVICE Stretch stretch_from(i64 low, i64 n, i64 bin_elems) {
    i64 first = bin_elems - low % bin_elems;
    return {low, int(min(i64(STRETCH), n - low)), int(min(first, i64(STRETCH))), STRETCH};
}

KERNEL(
    find_largest_of_bins, CTA,
    (const void* __restrict__ x, int kind, float* __restrict__ residual, float loss_scale,
     float back, i64 n, State* state, u64*, i64 bin_elems, u32* largest)) {
    Source from = {{x, kind}, {residual, loss_scale, back}, n};
    u32 seen = 0;
    bool even = are_even(from);
    for (i64 low = blockIdx.x * i64(STRETCH); low < n; low += gridDim.x * i64(STRETCH)) {
        Stretch stretch = stretch_from(low, n, bin_elems);
        Fours fours;
        load_fours<false>(from, stretch, even, fours);
        seen = max(seen, find_largest(stretch, fours, largest + low / bin_elems));
        keep_fours(residual, stretch, even, fours);
    }
    seen = team_max<CTA>(seen);
    if (threadIdx.x == 0) atomicMax(&state->largest, seen);
}

KERNEL(
    mark_large_bins, CTA,
    (const void* __restrict__ x, int kind, float* __restrict__ residual, float loss_scale,
     float back, i64 n, State* state, u64* marks, i64 bin_elems, u64 room,
     const u32* __restrict__ largest)) {
    __shared__ u32 counts[BINS];
    clear_counts(counts);
    Source from = {{x, kind}, {residual, loss_scale, back}, n};
    u32 begin = state->low, shift = state->shift;
    u32* words = reinterpret_cast<u32*>(marks);
    bool even = are_even(from);
    for (i64 low = blockIdx.x * i64(STRETCH); low < n; low += gridDim.x * i64(STRETCH)) {
        Stretch stretch = stretch_from(low, n, bin_elems);
        Fours fours;
        load_fours<true>(from, stretch, even, fours);
        mark_stretch(stretch, fours, largest + low / bin_elems, begin, shift, words, counts);
    }
    finish_marks(state, 0, counts, room);
}
