// Block-wise quantisation; see compressa.kernels.blockwise for the arithmetic and the layout, and
// _blockwise.cuh and _blockwise_held.cuh for how a team takes a block.

#include "_blockwise_held.cuh"

template <int THREADS, int EACH, bool RANDOM>
DEVICE void quantize(
    Values x, Feedback feedback, const Payload& to, i64 n, const Form& form, const Noise& noise) {
    constexpr int TEAMS = CTA / THREADS;
    i64 blocks = (n + form.block - 1) / form.block;
    for (i64 b = i64(blockIdx.x) * TEAMS; b < blocks; b += i64(gridDim.x) * TEAMS)
        quantize_group<THREADS, EACH, RANDOM>(x, feedback, to, b, n, form, noise);
}

// WHOLE: the block has fours only, at addresses that allow vectors.
template <int THREADS, int EACH, bool WHOLE>
DEVICE void dequantize_block(
    const u8* codes, float scale, float offset, bool ranged, float* out, int size, int zero,
    float weight, bool add) {
    int width = (size + EACH - 1) / EACH;
    for (int i = 4 * team_thread<THREADS>(); i < width; i += 4 * THREADS) {
        int some = WHOLE ? 4 : min(4, width - i);
        u32 word = load4<WHOLE>(codes, i, some);
        float values[EACH][4] = {};
        if (add) {
            UNROLLED for (int plane = 0; plane < EACH; ++plane) {
                int first = plane * width + i, count = WHOLE ? 4 : min(some, size - first);
                load4<WHOLE>(out, first, count, values[plane]);
            }
        }
        UNROLLED for (int plane = 0; plane < EACH; ++plane) {
            int first = plane * width + i, count = WHOLE ? 4 : min(some, size - first);
            float decoded[4];
            decode4<EACH>(word, plane, zero, scale, offset, ranged, decoded);
            put_or_add(values[plane], decoded, weight, add);
            store4<WHOLE>(out, first, count, values[plane]);
        }
    }
}

template <int THREADS, int EACH>
DEVICE void dequantize(
    const u8* codes, const float* scales, const float* offsets, float* out, i64 n, int block,
    int zero, float weight, bool add) {
    i64 blocks = (n + block - 1) / block;
    bool even = block % (4 * EACH) == 0 && is_aligned(codes, 4) && is_aligned(out, 16);
    for (i64 b = team_number<THREADS>(); b < blocks; b += team_count<THREADS>()) {
        i64 low = b * block;
        int size = int(min(i64(block), n - low));
        float scale = scales[b], offset = offsets ? offsets[b] : 0.0f;
        if (even && size == block)
            dequantize_block<THREADS, EACH, true>(
                codes + low / EACH, scale, offset, offsets, out + low, size, zero, weight, add);
        else
            dequantize_block<THREADS, EACH, false>(
                codes + low / EACH, scale, offset, offsets, out + low, size, zero, weight, add);
    }
}

struct Payloads {
    const u8* every_codes[MOST];
    const float *every_scales[MOST], *every_offsets[MOST];

    METHOD const u8* codes(int r) const { return every_codes[r]; }
    METHOD const float* scales(int r) const { return every_scales[r]; }
    METHOD const float* offsets(int r) const { return every_offsets[r]; }
};

template <int THREADS, int EACH>
DEVICE void sum(
    const Payloads& payloads, Sums sums, i64 n, int block, int zero, float weight) {
    i64 blocks = (n + block - 1) / block;
    Integers<Payloads> integers = {payloads, payloads.every_offsets[0] != nullptr, zero};
    constexpr int FOURS = EACH < 4 ? 2 : 1;  // there are no registers for four planes of two
    bool even = block % (4 * EACH) == 0 && are_even(sums) && have_even_codes(payloads);
    for (i64 b = team_number<THREADS>(); b < blocks; b += team_count<THREADS>())
        sum_block<THREADS, EACH, FOURS>(integers, sums, false, b, n, block, weight, even);
}

#define QUANTIZE_AS(name, ctas, quantize, ...)                                                    \
    CROWDED(                                                                                      \
        name, CTA, ctas,                                                                          \
        (const void* __restrict__ x, int kind, float* __restrict__ residual, float loss_scale,    \
         float back, u8* __restrict__ codes, float* __restrict__ scales,                          \
         float* __restrict__ offsets, i64 n, int block, int statistic, int top, int bottom,       \
         int zero, double clip, u32 seed, u32 stream, u32 step, u32 parameter, i64 start)) {      \
        Form form = {block, statistic, top, bottom, zero, clip};                                  \
        Noise noise = {seed, stream, step, parameter, start};                                     \
        quantize<__VA_ARGS__>(                                                                    \
            {x, kind}, {residual, loss_scale, back}, {codes, scales, offsets}, n, form, noise);   \
    }

#define QUANTIZE(name, ...) QUANTIZE_AS(name, 1, quantize, __VA_ARGS__)
#define QUANTIZE_HELD(name, RANDOM, BLOCK, EACH)                                                  \
    QUANTIZE_AS(                                                                                  \
        name, (HeldBlock<BLOCK, EACH, RANDOM>::CTAS), quantize_held,                              \
        HeldBlock<BLOCK, EACH, RANDOM>, RANDOM)

#define DEQUANTIZE(name, THREADS, EACH)                                                           \
    KERNEL(                                                                                       \
        name, CTA,                                                                                \
        (const u8* __restrict__ codes, const float* __restrict__ scales,                          \
         const float* __restrict__ offsets, float* __restrict__ out, i64 n, int block, int zero,  \
         float weight, bool add)) {                                                               \
        dequantize<THREADS, EACH>(codes, scales, offsets, out, n, block, zero, weight, add);      \
    }

#define SUM(name, THREADS, EACH)                                                                  \
    CROWDED(                                                                                      \
        name, CTA, CROWD,                                                                         \
        (EACH_OF(const u8* __restrict__, codes), EACH_OF(const float* __restrict__, scales),      \
         EACH_OF(const float* __restrict__, offsets),                                             \
         const float* before, void* out, int kind, i64 n, int block, int zero, float weight)) {   \
        Payloads payloads = {ALL_OF(codes), ALL_OF(scales), ALL_OF(offsets)};                     \
        sum<THREADS, EACH>(payloads, {before, out, kind}, n, block, zero, weight);                \
    }

QUANTIZE(quantize_8_by_warps, WARP, 1, false)
QUANTIZE(quantize_4_by_warps, WARP, 2, false)
QUANTIZE(quantize_2_by_warps, WARP, 4, false)
QUANTIZE(quantize_8_by_ctas, CTA, 1, false)
QUANTIZE(quantize_4_by_ctas, CTA, 2, false)
QUANTIZE(quantize_2_by_ctas, CTA, 4, false)
QUANTIZE(quantize_8_at_random_by_warps, WARP, 1, true)
QUANTIZE(quantize_4_at_random_by_warps, WARP, 2, true)
QUANTIZE(quantize_2_at_random_by_warps, WARP, 4, true)
QUANTIZE(quantize_8_at_random_by_ctas, CTA, 1, true)
QUANTIZE(quantize_4_at_random_by_ctas, CTA, 2, true)
QUANTIZE(quantize_2_at_random_by_ctas, CTA, 4, true)
QUANTIZE_HELD(quantize_8_of_128, false, 128, 1)
QUANTIZE_HELD(quantize_8_of_256, false, 256, 1)
QUANTIZE_HELD(quantize_8_of_512, false, 512, 1)
QUANTIZE_HELD(quantize_8_of_1024, false, 1024, 1)
QUANTIZE_HELD(quantize_4_of_128, false, 128, 2)
QUANTIZE_HELD(quantize_4_of_256, false, 256, 2)
QUANTIZE_HELD(quantize_4_of_512, false, 512, 2)
QUANTIZE_HELD(quantize_4_of_1024, false, 1024, 2)
QUANTIZE_HELD(quantize_2_of_256, false, 256, 4)
QUANTIZE_HELD(quantize_2_of_512, false, 512, 4)
QUANTIZE_HELD(quantize_2_of_1024, false, 1024, 4)
QUANTIZE_HELD(quantize_8_at_random_of_128, true, 128, 1)
QUANTIZE_HELD(quantize_8_at_random_of_256, true, 256, 1)
QUANTIZE_HELD(quantize_8_at_random_of_512, true, 512, 1)
QUANTIZE_HELD(quantize_8_at_random_of_1024, true, 1024, 1)
QUANTIZE_HELD(quantize_4_at_random_of_128, true, 128, 2)
QUANTIZE_HELD(quantize_4_at_random_of_256, true, 256, 2)
QUANTIZE_HELD(quantize_4_at_random_of_512, true, 512, 2)
QUANTIZE_HELD(quantize_4_at_random_of_1024, true, 1024, 2)
QUANTIZE_HELD(quantize_2_at_random_of_256, true, 256, 4)
QUANTIZE_HELD(quantize_2_at_random_of_512, true, 512, 4)
QUANTIZE_HELD(quantize_2_at_random_of_1024, true, 1024, 4)
// Two blocks to a warp where codes share bytes: one of 128 would leave half of it idle.
DEQUANTIZE(dequantize_8_by_warps, WARP, 1)
DEQUANTIZE(dequantize_4_by_warps, LANES, 2)
DEQUANTIZE(dequantize_2_by_warps, LANES, 4)
DEQUANTIZE(dequantize_8_by_ctas, CTA, 1)
DEQUANTIZE(dequantize_4_by_ctas, CTA, 2)
DEQUANTIZE(dequantize_2_by_ctas, CTA, 4)
SUM(sum_8_by_warps, WARP, 1)
SUM(sum_4_by_warps, LANES, 2)
SUM(sum_2_by_warps, LANES, 4)
SUM(sum_8_by_ctas, CTA, 1)
SUM(sum_4_by_ctas, CTA, 2)
SUM(sum_2_by_ctas, CTA, 4)
