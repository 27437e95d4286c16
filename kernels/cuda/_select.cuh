// What a selection knows while it goes on, and how it finds the one of a certain rank.
//
// Magnitudes are compared as their bits, which order as they do. A survey marks all elements from
// some magnitude on, the candidates, in a bitmap, and counts them by their leading bits; then
// only candidates are looked at.
#pragma once

#include "_scan.cuh"
#include "_values.cuh"

constexpr int TILE = 2048;               // elements that a warp takes at a time
constexpr int TILES = CTA / WARP;        // that a CTA does
constexpr int WORDS = TILE / 64;         // of a tile in the bitmap: one for each lane
constexpr int BINS = 2048, BIN_BITS = 11;
constexpr int LEVELS = 4;                // histograms: of two surveys, and two finer ones
constexpr int STATE_WORDS = 8208;        // as in _select.py
constexpr u32 INFINITE = 0x7F800000u, LARGEST = 0x7F7FFFFFu, NONE = 0xFFFFFFFFu;
constexpr u64 ALL = 1ull << 62;
constexpr int CHOSEN = LEVELS, COUNTED = LEVELS + 1, FITTED = LEVELS + 2;

enum Reference { ONE, RMS, MAX };
enum Todo { SURVEY_AGAIN, REFINE, NOTHING, COUNT_ALL, COUNT_MARKED };

// The vector q = (x + loss_scale * residual) * back; once surveyed, the residual holds it.
struct Source {
    Values x;
    Feedback feedback;
    i64 n;
};

struct State {
    u64 count;    // how many are chosen
    u64 surveys;  // how many there were
    u64 wanted;   // rank, among those that the range below begins with, of the last one
    u64 ties;     // how many that equal the threshold are chosen
    u64 counts[LEVELS][BINS];
    u32 todo;
    u32 floor;              // nothing smaller is chosen
    u32 least;              // the smallest candidate
    u32 low, shift, width;  // the range that is counted: 2^width from low on, 2^shift in a bin
    u32 threshold;
    u32 largest;
    u32 arrived[LEVELS + 3];  // CTAs that have finished a kernel: those of levels, and further
    float first;  // what the residual held where a NaN will be sent
};
static_assert(sizeof(State) <= 8 * STATE_WORDS, "the launcher has memory for it");

// Once surveyed.
DEVICE float kept(const Source& from, i64 i) {
    const Feedback& feedback = from.feedback;
    return feedback.residual ? feedback.residual[i] : load(from.x, i) * feedback.back;
}

DEVICE bool are_even(const Source& from) {
    return is_even(from.x) && is_aligned(from.feedback.residual, 16);
}

// Leave the four in the residual, but for those that are not finite.
template <bool EVEN>
DEVICE void keep4(float* residual, i64 i, int count, const float (&q)[4]) {
    bool all = true;
    for (int u = 0; u < 4; ++u) all = all && is_finite(q[u]);
    if (all) return store4<EVEN>(residual, i, count, q);
    for (int u = 0; u < 4; ++u)
        if (u < count && is_finite(q[u])) residual[i + u] = q[u];
}

// What is sent of q; the residual keeps it if it is too large to be.
DEVICE float sent(const Source& from, i64 i, float q) {
    float value = q * from.feedback.loss_scale;
    if (from.feedback.residual) from.feedback.residual[i] = is_finite(value) ? 0.0f : q;
    return value;
}

// Call visit(bit) for each bit of a word that is set, the lowest first.
template <class Visit>
DEVICE void for_bits(u64 word, Visit visit) {
    for (; word; word &= word - 1u) {
        u32 low = u32(word), high = u32(word >> 32);
        visit(low ? __ffs(low) - 1 : 31 + __ffs(high));
    }
}

struct Crossing {
    int bin;           // where counts from the last bin down reach what is wanted; -1: nowhere
    u64 above, total;  // of the bins beyond it, and of all
};

// All threads of a CTA come here; `wanted` is at least one.
template <class Count>
DEVICE Crossing crossing(const Count* counts, u64 wanted) {
    constexpr int EACH = BINS / CTA;
    __shared__ Crossing found;
    int first = EACH * int(threadIdx.x);
    u64 own = 0;
    for (int e = 0; e < EACH; ++e) own += fresh(counts + first + e);
    Scanned<u64> scanned = cta_scan(own);
    u64 above = scanned.total - scanned.before - own;
    if (threadIdx.x == 0) found = {-1, 0, scanned.total};
    __syncthreads();
    if (above < wanted && wanted <= above + own) {
        int bin = first + EACH - 1;
        for (; bin > first; --bin) {
            u64 here = fresh(counts + bin);
            if (above + here >= wanted) break;
            above += here;
        }
        found = {bin, above, scanned.total};
    }
    __syncthreads();
    Crossing result = found;
    __syncthreads();  // until all have read it
    return result;
}

// Have the bins cover what lies between; the last one counts all that is larger.
DEVICE void set_range(State* state, u32 low, u32 high) {
    u32 shift = 0;
    high = max(low, high);
    while ((high - low) >> shift > BINS - 2u) ++shift;
    state->low = low, state->shift = shift;
}

// Whether something is not finite: nothing is decided then.
DEVICE bool has_overflown(const State* state) { return fresh(&state->largest) >= INFINITE; }

// Before a survey of candidates from `least` on; all threads of a CTA come here.
DEVICE void begin_survey(State* state, const float* residual, u32 floor, u32 least, u32 high) {
    u64* all = state->counts[0];
    for (int bin = int(threadIdx.x); bin < LEVELS * BINS; bin += CTA) all[bin] = 0;
    if (threadIdx.x != 0) return;
    state->count = 0, state->largest = 0;
    state->floor = floor, state->least = least;
    set_range(state, least, high);
    for (int kernel = 0; kernel <= FITTED; ++kernel) state->arrived[kernel] = 0;
    if (residual) state->first = residual[0];
}

DEVICE void settle(State* state, u32 threshold, u64 ties) {
    bool all = threshold < state->floor;
    state->threshold = all ? state->floor : threshold;
    state->ties = all ? ALL : ties;
    state->todo = NOTHING;
}

DEVICE void survey_from(State* state, u32 least) {
    state->least = least;
    set_range(state, least, LARGEST);
    state->todo = SURVEY_AGAIN;
}

// Go on in the bin where the last one wanted is.
DEVICE void narrow(State* state, const Crossing& found) {
    state->low += u32(found.bin) << state->shift;
    state->wanted -= found.above;
    state->width = state->shift;
    state->shift = state->width > BIN_BITS ? state->width - BIN_BITS : 0;
    state->todo = REFINE;
    if (state->width == 0) settle(state, state->low, state->wanted);
}

DEVICE void clear_counts(u32* counts) {
    for (int bin = int(threadIdx.x); bin < BINS; bin += CTA) counts[bin] = 0;
    __syncthreads();
}

// All threads of a CTA come here, once they have counted.
DEVICE void add_counts(const u32* counts, u64* to) {
    __syncthreads();
    for (int bin = int(threadIdx.x); bin < BINS; bin += CTA)
        if (counts[bin]) atomicAdd(to + bin, u64(counts[bin]));
}

// Bits of the smallest magnitude that reaches a threshold that is relative to a reference.
DEVICE u32 floor_of(double threshold, double reference, float largest) {
    double floor = threshold * reference;
    floor = double(largest) < floor ? double(largest) : floor;
    return magnitude_bits(float(0x1p-149 > floor ? 0x1p-149 : floor));
}

// A sample of a vector: one element of each of many equal stretches.

// By a sequence without a period that the vector may share.
DEVICE i64 sample_index(u64 number, u64 stretch) {
    u64 word = (number * 0x9E3779B97F4A7C15ull) >> 32;
    return i64(number * stretch + (word * stretch >> 32));
}

// Call take(number, bits) for the numbers `first`, `first + step`, ... of a sample of q's
// magnitudes. Far elements, eight at a time: all are asked for before any is waited for.
template <class Take>
DEVICE void draw(const Source& from, i64 size, i64 first, i64 step, Take take) {
    constexpr int AT_ONCE = 8;
    const float* residual = from.feedback.residual;
    u64 stretch = u64(from.n) / u64(size);
    for (; first < size; first += AT_ONCE * step) {
        float x[AT_ONCE], left[AT_ONCE];
        for (int e = 0; e < AT_ONCE; ++e) {
            i64 i = sample_index(u64(min(first + e * step, size - 1)), stretch);
            x[e] = load(from.x, i), left[e] = residual ? residual[i] : 0.0f;
        }
        for (int e = 0; e < AT_ONCE; ++e) {
            float p = residual ? x[e] + from.feedback.loss_scale * left[e] : x[e];
            i64 number = first + e * step;
            if (number < size) take(number, magnitude_bits(p * from.feedback.back));
        }
    }
}

// The one pass over all of the memory that a selection begins with, and what is decided after it.

// Four from i on, and four from each further step on: all are asked for before any is waited for.
template <bool FIRST, bool EVEN, int TIMES>
DEVICE void surveyed4(const Source& from, i64 i, int count, int step, float (&q)[TIMES][4]) {
    const Feedback& feedback = from.feedback;
    if (!FIRST && feedback.residual) {
        UNROLLED for (int t = 0; t < TIMES; ++t)
            load4<EVEN>(feedback.residual, i + t * step, count - t * step, q[t]);
        return;
    }
    effective_fours<EVEN>(from.x, feedback, i, count, step, q);
    for (int t = 0; t < TIMES; ++t)
        for (int u = 0; u < 4; ++u) q[t][u] = q[t][u] * feedback.back;
}

// What a warp has of a tile at a time: AT_ONCE fours in each lane, STEP elements apart.
constexpr int AT_ONCE = 2, STEP = 4 * WARP;

// A survey that measures nothing else.
struct Unmeasured {
    METHOD void take(int, int, const float (&)[AT_ONCE][4]) {}
    METHOD void end(i64, i64, int) {}
};

// Mark and count the candidates of a tile; return the largest magnitude that this lane sees. WHOLE:
// the tile has fours only, at addresses that allow vectors.
template <bool FIRST, bool WHOLE, class Measure>
DEVICE u32 survey_tile(
    const Source& from, i64 low, u32 least, u32 begin, u32 shift, u32* marks, u32* counts,
    Measure& measure) {
    int lane = team_thread<WARP>(), size = WHOLE ? TILE : int(min(i64(TILE), from.n - low));
    u32 largest = 0;
    for (int step = 0; step < TILE; step += AT_ONCE * STEP) {
        float q[AT_ONCE][4];
        int begins = step + 4 * lane;
        surveyed4<FIRST, WHOLE>(from, low + begins, WHOLE ? TILE : size - begins, STEP, q);
        measure.take(step, size, q);
        for (int b = 0; b < AT_ONCE; ++b) {
            int i = begins + b * STEP;
            u32 word = 0;
            for (int u = 0; u < 4; ++u) {
                u32 bits = magnitude_bits(q[b][u]);
                largest = max(largest, bits);
                if ((!WHOLE && i + u >= size) || bits < least) continue;
                atomicAdd(counts + min((bits - begin) >> shift, BINS - 1u), 1u);
                word |= 1u << (4 * (lane % 8) + u);
            }
            if (FIRST && from.feedback.residual)
                keep4<WHOLE>(from.feedback.residual, low + i, WHOLE ? 4 : size - i, q[b]);
            for (int other = 1; other < 8; other *= 2)
                word |= __shfl_xor_sync(WHOLE_WARP, word, other);
            if (lane % 8 == 0) marks[i / 32] = word;
        }
    }
    return largest;
}

// Leave q in the residual; mark and count candidates, in the second survey in counts[1]. Of each of
// its tiles a warp calls measure.take(step, size, q) for what it has at a time, and then
// measure.end(tile, low, size). Returns whether this CTA is the last to finish, and so knows all.
template <bool FIRST, class Measure = Unmeasured>
DEVICE bool surveyed(const Source& from, State* state, u64* marks, Measure measure = {}) {
    constexpr int LEVEL = FIRST ? 0 : 1;
    __shared__ u32 counts[BINS];
    clear_counts(counts);
    u32 least = state->least, begin = state->low, shift = state->shift, largest = 0;
    bool even = are_even(from);
    i64 tiles = (from.n + TILE - 1) / TILE;
    for (i64 tile = team_number<WARP>(); tile < tiles; tile += team_count<WARP>()) {
        i64 low = tile * TILE;
        u32* own = reinterpret_cast<u32*>(marks + tile * WORDS);
        bool whole = even && low + TILE <= from.n;
        u32 here =
            whole ? survey_tile<FIRST, true>(from, low, least, begin, shift, own, counts, measure)
                  : survey_tile<FIRST, false>(from, low, least, begin, shift, own, counts, measure);
        largest = max(largest, here);
        measure.end(tile, low, int(min(i64(TILE), from.n - low)));
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
