// Scaled signs; see compressa.kernels.onebit for the arithmetic and the layout, and _onebit.cuh for
// how a team takes a block.

#include "_onebit.cuh"

// The blocks from b on, those of all teams of the launch.
template <int THREADS>
DEVICE void quantize(
    Values x, Feedback feedback, u8* bits, float* scales, i64 n, int block, i64 b = 0) {
    i64 blocks = (n + block - 1) / block;
    for (b += team_number<THREADS>(); b < blocks; b += team_count<THREADS>())
        quantize_signs<THREADS>(x, feedback, bits, scales, b, n, block);
}

RARE void quantize_others(
    Values x, Feedback feedback, u8* bits, float* scales, i64 n, int block, i64 b) {
    quantize<WARP>(x, feedback, bits, scales, n, block, b);
}

// By teams that hold their blocks in registers.
template <class H>
DEVICE void quantize_held(
    Values x, Feedback feedback, u8* bits, float* scales, i64 n, int block) {
    bool even = are_even(x, feedback.residual, bits);
    i64 whole = whole_blocks(n, even, H::TEAMS, H::BLOCK), own = int(threadIdx.x) / H::TEAM;
    auto take = [&](const Asked<H>& asked, i64 b, auto ask_next) {
        quantize_signs_asked<H>(asked, x, feedback, bits, scales, b + own, ask_next);
    };
    for_held<H>(x, feedback.residual, whole, take);
    if (whole * H::BLOCK < n) quantize_others(x, feedback, bits, scales, n, block, whole);
}

template <int THREADS, bool WHOLE>
DEVICE void dequantize_block(
    const u8* bits, u32 scale, float* out, int size, float weight, bool add) {
    for_planes<THREADS, WHOLE>(size, [&](int plane, int i, int some, int first, int count) {
        u32 word = load4<WHOLE>(bits, i, some);
        combine4<WHOLE>(out, first, count, weight, add, [&](float (&values)[4]) {
            u32 negative = word >> plane;
            for (int u = 0; u < 4; ++u) values[u] = __uint_as_float(scale ^ sign_bit(negative, u));
        });
    });
}

template <int THREADS>
DEVICE void dequantize(
    const u8* bits, const float* scales, float* out, i64 n, int block, float weight, bool add) {
    i64 blocks = (n + block - 1) / block;
    bool even = has_even_planes(block) && is_aligned(bits, 4) && is_aligned(out, 16);
    for (i64 b = team_number<THREADS>(); b < blocks; b += team_count<THREADS>()) {
        i64 low = b * block;
        int size = int(min(i64(block), n - low));
        const u8* own = bits + low / PLANES;
        u32 scale = __float_as_uint(scales[b]);
        if (even && size == block)
            dequantize_block<THREADS, true>(own, scale, out + low, size, weight, add);
        else dequantize_block<THREADS, false>(own, scale, out + low, size, weight, add);
    }
}

struct Payloads {
    const u8* every_bits[MOST];
    const float* every_scales[MOST];

    METHOD const u8* codes(int r) const { return every_bits[r]; }
    METHOD const float* scales(int r) const { return every_scales[r]; }
};

template <int THREADS>
DEVICE void sum(const Payloads& payloads, Sums sums, i64 n, int block, float weight) {
    i64 blocks = (n + block - 1) / block;
    bool even = has_even_planes(block) && are_even(sums) && have_even_codes(payloads);
    for (i64 b = team_number<THREADS>(); b < blocks; b += team_count<THREADS>())
        sum_signs<THREADS>(payloads, sums, false, b, n, block, weight, even);
}

#define QUANTIZE_AS(name, ctas, quantize)                                                         \
    CROWDED(                                                                                      \
        name, CTA, ctas,                                                                          \
        (const void* __restrict__ x, int kind, float* __restrict__ residual, float loss_scale,    \
         float back, u8* __restrict__ bits, float* __restrict__ scales, i64 n, int block)) {      \
        quantize({x, kind}, {residual, loss_scale, back}, bits, scales, n, block);                \
    }

#define QUANTIZE(name, THREADS) QUANTIZE_AS(name, 1, quantize<THREADS>)
#define QUANTIZE_HELD(name, BLOCK)                                                                \
    QUANTIZE_AS(name, (Held<BLOCK, PLANES>::CTAS), (quantize_held<Held<BLOCK, PLANES>>))

#define DEQUANTIZE(name, THREADS)                                                                 \
    KERNEL(                                                                                       \
        name, CTA,                                                                                \
        (const u8* __restrict__ bits, const float* __restrict__ scales, float* __restrict__ out,  \
         i64 n, int block, float weight, bool add)) {                                             \
        dequantize<THREADS>(bits, scales, out, n, block, weight, add);                            \
    }

#define SUM(name, THREADS)                                                                        \
    CROWDED(                                                                                      \
        name, CTA, CROWD,                                                                         \
        (EACH_OF(const u8* __restrict__, bits), EACH_OF(const float* __restrict__, scales),       \
         const float* before, void* out, int kind, i64 n, int block, float weight)) {             \
        sum<THREADS>({ALL_OF(bits), ALL_OF(scales)}, {before, out, kind}, n, block, weight);      \
    }

QUANTIZE(quantize_by_warps, WARP)
QUANTIZE(quantize_by_ctas, CTA)
QUANTIZE_HELD(quantize_of_512, 512)
QUANTIZE_HELD(quantize_of_1024, 1024)
DEQUANTIZE(dequantize_by_warps, WARP)
DEQUANTIZE(dequantize_by_ctas, CTA)
SUM(sum_by_warps, WARP)
SUM(sum_by_ctas, CTA)
