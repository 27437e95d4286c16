// Block-wise quantisation; see compressa.kernels.blockwise for the arithmetic and the layout, and
// _blockwise.cuh for how a team takes a block.

#include "_blockwise.cuh"

template <int THREADS, int EACH, bool RANDOM>
DEVICE void quantize(
    Values x, Feedback feedback, const Payload& to, i64 n, const Form& form, const Noise& noise) {
    constexpr int TEAMS = CTA / THREADS;
    i64 blocks = (n + form.block - 1) / form.block;
    for (i64 b = i64(blockIdx.x) * TEAMS; b < blocks; b += i64(gridDim.x) * TEAMS)
        quantize_group<THREADS, EACH, RANDOM>(x, feedback, to, b, n, form, noise);
}

template <int THREADS, int EACH>
DEVICE void dequantize(
    const u8* codes, const float* scales, const float* offsets, float* out, i64 n, int block,
    int zero, float weight, bool add) {
    i64 blocks = (n + block - 1) / block;
    for (i64 b = team_number<THREADS>(); b < blocks; b += team_count<THREADS>()) {
        i64 low = b * block;
        int size = int(min(i64(block), n - low)), width = (size + EACH - 1) / EACH;
        float scale = scales[b], offset = offsets ? offsets[b] : 0.0f;
        for (int i = 4 * team_thread<THREADS>(); i < width; i += 4 * THREADS) {
            u32 word = load4(codes, low / EACH + i, min(4, width - i));
            for (int plane = 0; plane < EACH; ++plane) {
                int first = plane * width + i, count = min(min(4, width - i), size - first);
                float values[4];
                decode4<EACH>(word, plane, zero, scale, offset, offsets != nullptr, values);
                combine4(out, low + first, count, values, weight, add);
            }
        }
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
    bool ranged = payloads.every_offsets[0] != nullptr;
    for (i64 b = team_number<THREADS>(); b < blocks; b += team_count<THREADS>())
        sum_block<THREADS, EACH>(payloads, ranged, sums, false, b, n, block, zero, weight);
}

#define QUANTIZE(name, THREADS, EACH, RANDOM)                                                     \
    KERNEL(                                                                                       \
        name, CTA,                                                                                \
        (const void* x, int kind, float* residual, float loss_scale, float back, u8* codes,       \
         float* scales, float* offsets, i64 n, int block, int statistic, int top, int bottom,     \
         int zero, double clip, u32 seed, u32 stream, u32 step, u32 parameter, i64 start)) {      \
        Form form = {block, statistic, top, bottom, zero, clip};                                  \
        Noise noise = {seed, stream, step, parameter, start};                                     \
        quantize<THREADS, EACH, RANDOM>(                                                          \
            {x, kind}, {residual, loss_scale, back}, {codes, scales, offsets}, n, form, noise);   \
    }

#define DEQUANTIZE(name, THREADS, EACH)                                                           \
    KERNEL(                                                                                       \
        name, CTA,                                                                                \
        (const u8* codes, const float* scales, const float* offsets, float* out, i64 n,           \
         int block, int zero, float weight, bool add)) {                                          \
        dequantize<THREADS, EACH>(codes, scales, offsets, out, n, block, zero, weight, add);      \
    }

#define SUM(name, THREADS, EACH)                                                                  \
    KERNEL(                                                                                       \
        name, CTA,                                                                                \
        (EACH_OF(const u8*, codes), EACH_OF(const float*, scales), EACH_OF(const float*, offsets), \
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
DEQUANTIZE(dequantize_8_by_warps, WARP, 1)
DEQUANTIZE(dequantize_4_by_warps, WARP, 2)
DEQUANTIZE(dequantize_2_by_warps, WARP, 4)
DEQUANTIZE(dequantize_8_by_ctas, CTA, 1)
DEQUANTIZE(dequantize_4_by_ctas, CTA, 2)
DEQUANTIZE(dequantize_2_by_ctas, CTA, 4)
SUM(sum_8_by_warps, WARP, 1)
SUM(sum_4_by_warps, WARP, 2)
SUM(sum_2_by_warps, WARP, 4)
SUM(sum_8_by_ctas, CTA, 1)
SUM(sum_4_by_ctas, CTA, 2)
SUM(sum_2_by_ctas, CTA, 4)
