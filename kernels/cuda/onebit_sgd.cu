// One bit per element with two means per group; see compressa.kernels.onebit_sgd.
//
// A team takes a group: once through for both sums, which one warp adds up in the written order
// out of shared memory while the others fetch what comes next, and once more for the signs. Of a
// group that is longer than a CTA should do alone, CTAs share the signs, in a launch of their own.

#include "_team.cuh"
#include "_values.cuh"

constexpr int PLANES = 8;

struct Group {
    i64 low, size;     // elements
    i64 first, width;  // bytes
};

struct Means {
    float negative, other;
};

DEVICE Group group_at(i64 number, i64 length, i64 n) {
    i64 low = number * length, size = min(length, n - low);
    return {low, size, number * ((length + PLANES - 1) / PLANES), (size + PLANES - 1) / PLANES};
}

// Whether groups begin at addresses that allow vectors.
DEVICE bool are_even(Values x, Feedback feedback, i64 length) {
    return length % 4 == 0 && is_even(x) && is_aligned(feedback.residual, 16);
}

DEVICE i64 group_count(i64 n, i64 length) { return (n + length - 1) / length; }

// Neighbouring bytes that a thread makes, from as many elements in each plane: few of short groups.
template <int THREADS>
constexpr int EACH = THREADS == WARP ? 1 : 4;

// Runs of EACH * THREADS bytes that cover a group.
template <int THREADS>
DEVICE i64 run_count(i64 length) {
    constexpr int RUN = EACH<THREADS> * THREADS;
    return ((length + PLANES - 1) / PLANES + RUN - 1) / RUN;
}

// What adds up: a warp, whose lower half has the lanes of the sum of the negative elements, and the
// upper half those of the others.
struct Sums {
    double sum;
    i64 negative;  // how many are
};

DEVICE void add_piece(Sums& sums, const float* piece, int size) {
    int lane = int(threadIdx.x) % WARP;
    bool lower = lane < LANES;
    for (int i = lane % LANES; i < size; i += LANES) {
        bool negative = piece[i] < 0.0f;
        sums.sum += negative == lower ? double(piece[i]) : 0.0;
        sums.negative += negative;
    }
}

template <int THREADS>
DEVICE Means means_of_sums(Sums sums, i64 size) {
    for (int half = LANES / 2; half; half /= 2) {
        sums.sum += __shfl_xor_sync(WHOLE_WARP, sums.sum, half);
        sums.negative += __shfl_xor_sync(WHOLE_WARP, sums.negative, half);
    }
    bool lower = int(threadIdx.x) % WARP < LANES;
    i64 count = lower ? sums.negative : size - sums.negative;
    float mean = count ? float(sums.sum / double(count)) : 0.0f;
    bool finite = __all_sync(WHOLE_WARP, sums.sum - sums.sum == 0.0);
    if (!finite) mean = __uint_as_float(0x7FC00000u);
    float other = __shfl_sync(WHOLE_WARP, mean, LANES);
    return {team_told<THREADS>(mean), team_told<THREADS>(other)};
}

template <int THREADS>
DEVICE Means means_of(Values x, Feedback feedback, Group group, bool even) {
    constexpr int FOURS = 2, PIECE = 4 * FOURS * THREADS;
    __shared__ float4 pieces[2][FOURS * CTA];
    int thread = team_thread<THREADS>(), begin = int(threadIdx.x) / THREADS * FOURS * THREADS;
    float next[FOURS][4];
    auto fetch = [&](i64 low) {
        i64 i = low + 4 * thread;
        int count = int(min(i64(PIECE), group.size - i));
        if (even) effective_fours<true>(x, feedback, group.low + i, count, 4 * THREADS, next);
        else effective_fours<false>(x, feedback, group.low + i, count, 4 * THREADS, next);
    };
    Sums sums = {0.0, 0};
    fetch(0);
    // Two pieces take turns, so that one barrier is enough: what is overwritten was read before it.
    int half = 0;
    for (i64 low = 0; low < group.size; low += PIECE, half ^= 1) {
        float4* piece = pieces[half] + begin;
        for (int f = 0; f < FOURS; ++f)
            piece[f * THREADS + thread] =
                make_float4(next[f][0], next[f][1], next[f][2], next[f][3]);
        fetch(low + PIECE);
        team_sync<THREADS>();
        if (thread < WARP) {
            int size = int(min(i64(PIECE), group.size - low));
            add_piece(sums, reinterpret_cast<const float*>(piece), size);
        }
    }
    return means_of_sums<THREADS>(sums, group.size);
}

// Make the signs of a run, and keep what they do not say. EVEN: at addresses that allow vectors.
template <int THREADS, bool EVEN>
DEVICE void write_signs(
    Values x, Feedback feedback, Group group, i64 run, Means means, u8* bits) {
    i64 i = EACH<THREADS> * (run * THREADS + team_thread<THREADS>());
    int some = int(max(i64(0), min(i64(EACH<THREADS>), group.width - i)));
    bool finite = means.other == means.other;
    u32 word = 0;
    for (int plane = 0; plane < PLANES && finite; ++plane) {
        i64 first = plane * group.width + i;
        int count = int(max(i64(0), min(i64(some), group.size - first)));
        float p[1][4], left[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        effective_fours<EVEN>(x, feedback, group.low + first, count, 0, p);
        for (int u = 0; u < EACH<THREADS>; ++u) {
            bool negative = p[0][u] < 0.0f;
            word |= u32(negative) << (8 * u + plane);
            left[u] = (p[0][u] - (negative ? means.negative : means.other)) * feedback.back;
        }
        if (feedback.residual) store4<EVEN>(feedback.residual, group.low + first, count, left);
    }
    store4(bits, group.first + i, some, word);
}

template <int THREADS>
DEVICE void write_run(
    Values x, Feedback feedback, Group group, i64 run, Means means, u8* bits, bool even) {
    if (even && group.width % 4 == 0)
        write_signs<THREADS, true>(x, feedback, group, run, means, bits);
    else write_signs<THREADS, false>(x, feedback, group, run, means, bits);
}

template <int THREADS>
DEVICE void note_means(float* means, i64 number, Means found) {
    if (team_thread<THREADS>() == 0)
        means[2 * number] = found.negative, means[2 * number + 1] = found.other;
}

template <int THREADS>
DEVICE void quantize(
    Values x, Feedback feedback, u8* bits, float* means, i64 n, i64 length) {
    i64 groups = group_count(n, length);
    bool even = are_even(x, feedback, length);
    for (i64 g = team_number<THREADS>(); g < groups; g += team_count<THREADS>()) {
        Group group = group_at(g, length, n);
        Means found = means_of<THREADS>(x, feedback, group, even);
        for (i64 run = 0; run < run_count<THREADS>(group.size); ++run)
            write_run<THREADS>(x, feedback, group, run, found, bits, even);
        note_means<THREADS>(means, g, found);
    }
}

template <int THREADS, bool EVEN>
DEVICE void dequantize_run(
    const u8* bits, Means means, float* out, Group group, i64 run, float weight, bool add) {
    i64 i = EACH<THREADS> * (run * THREADS + team_thread<THREADS>());
    int some = int(max(i64(0), min(i64(EACH<THREADS>), group.width - i)));
    u32 word = load4(bits, group.first + i, some);
    for (int plane = 0; plane < PLANES; ++plane) {
        i64 first = plane * group.width + i;
        int count = int(max(i64(0), min(i64(some), group.size - first)));
        combine4<EVEN>(out, group.low + first, count, weight, add, [&](float (&values)[4]) {
            for (int u = 0; u < 4; ++u)
                values[u] = word >> (8 * u + plane) & 1u ? means.negative : means.other;
        });
    }
}

template <int THREADS>
DEVICE void dequantize(
    const u8* bits, const float* means, float* out, i64 n, i64 length, float weight, bool add) {
    i64 runs = run_count<THREADS>(length), teams = group_count(n, length) * runs;
    bool even = length % 4 == 0 && is_aligned(out, 16);
    for (i64 t = team_number<THREADS>(); t < teams; t += team_count<THREADS>()) {
        i64 g = t / runs;
        Group group = group_at(g, length, n);
        Means own = {means[2 * g], means[2 * g + 1]};
        if (even && group.width % 4 == 0)
            dequantize_run<THREADS, true>(bits, own, out, group, t % runs, weight, add);
        else dequantize_run<THREADS, false>(bits, own, out, group, t % runs, weight, add);
    }
}

#define TWO_MEANS(BY, THREADS)                                                                   \
    KERNEL(                                                                                      \
        quantize_by_##BY, CTA,                                                                   \
        (const void* __restrict__ x, int kind, float* __restrict__ residual, float loss_scale,   \
         float back, u8* __restrict__ bits, float* __restrict__ means, i64 n, i64 length)) {     \
        quantize<THREADS>({x, kind}, {residual, loss_scale, back}, bits, means, n, length);      \
    }                                                                                            \
    KERNEL(                                                                                      \
        dequantize_by_##BY, CTA,                                                                 \
        (const u8* __restrict__ bits, const float* __restrict__ means, float* __restrict__ out,  \
         i64 n, i64 length, float weight, bool add)) {                                           \
        dequantize<THREADS>(bits, means, out, n, length, weight, add);                           \
    }

TWO_MEANS(warps, WARP)
TWO_MEANS(ctas, CTA)

KERNEL(
    find_means, CTA,
    (const void* __restrict__ x, int kind, float* __restrict__ residual, float loss_scale,
     float back, float* __restrict__ means, i64 n, i64 length)) {
    Feedback feedback = {residual, loss_scale, back};
    bool even = are_even({x, kind}, feedback, length);
    for (i64 g = team_number<CTA>(); g < group_count(n, length); g += team_count<CTA>()) {
        Group group = group_at(g, length, n);
        note_means<CTA>(means, g, means_of<CTA>({x, kind}, feedback, group, even));
    }
}

KERNEL(
    write_all_signs, CTA,
    (const void* __restrict__ x, int kind, float* __restrict__ residual, float loss_scale,
     float back, u8* __restrict__ bits, const float* __restrict__ means, i64 n, i64 length)) {
    Feedback feedback = {residual, loss_scale, back};
    bool even = are_even({x, kind}, feedback, length);
    i64 runs = run_count<CTA>(length), teams = group_count(n, length) * runs;
    for (i64 t = team_number<CTA>(); t < teams; t += team_count<CTA>()) {
        i64 g = t / runs;
        Means found = {means[2 * g], means[2 * g + 1]};
        Group group = group_at(g, length, n);
        write_run<CTA>({x, kind}, feedback, group, t % runs, found, bits, even);
    }
}
