// Scaled signs; see compressa.kernels.onebit for the arithmetic and the layout, and _onebit.cuh for
// how a team takes a block.

#include "_onebit.cuh"

template <int THREADS>
DEVICE void quantize(Values x, Feedback feedback, u8* bits, float* scales, i64 n, int block) {
    i64 blocks = (n + block - 1) / block;
    for (i64 b = team_number<THREADS>(); b < blocks; b += team_count<THREADS>())
        quantize_signs<THREADS>(x, feedback, bits, scales, b, n, block);
}

template <int THREADS>
DEVICE void dequantize(
    const u8* bits, const float* scales, float* out, i64 n, int block, float weight, bool add) {
    i64 blocks = (n + block - 1) / block;
    for (i64 b = team_number<THREADS>(); b < blocks; b += team_count<THREADS>()) {
        i64 low = b * block;
        int size = int(min(i64(block), n - low));
        u32 scale = __float_as_uint(scales[b]);
        for_signs<THREADS>(bits, low / PLANES, size, [&](int first, int count, u32 negative) {
            combine4(out, low + first, count, weight, add, [&](float (&values)[4]) {
                for (int u = 0; u < 4; ++u)
                    values[u] = __uint_as_float(scale ^ sign_bit(negative, u));
            });
        });
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
    for (i64 b = team_number<THREADS>(); b < blocks; b += team_count<THREADS>())
        sum_signs<THREADS>(payloads, sums, false, b, n, block, weight);
}

#define QUANTIZE(name, THREADS)                                                                   \
    KERNEL(                                                                                       \
        name, CTA,                                                                                \
        (const void* x, int kind, float* residual, float loss_scale, float back, u8* bits,        \
         float* scales, i64 n, int block)) {                                                      \
        quantize<THREADS>({x, kind}, {residual, loss_scale, back}, bits, scales, n, block);       \
    }

#define DEQUANTIZE(name, THREADS)                                                                 \
    KERNEL(                                                                                       \
        name, CTA,                                                                                \
        (const u8* bits, const float* scales, float* out, i64 n, int block, float weight,         \
         bool add)) {                                                                             \
        dequantize<THREADS>(bits, scales, out, n, block, weight, add);                            \
    }

#define SUM(name, THREADS)                                                                        \
    KERNEL(                                                                                       \
        name, CTA,                                                                                \
        (EACH_OF(const u8*, bits), EACH_OF(const float*, scales), const float* before, void* out, \
         int kind, i64 n, int block, float weight)) {                                             \
        sum<THREADS>({ALL_OF(bits), ALL_OF(scales)}, {before, out, kind}, n, block, weight);      \
    }

QUANTIZE(quantize_by_warps, WARP)
QUANTIZE(quantize_by_ctas, CTA)
DEQUANTIZE(dequantize_by_warps, WARP)
DEQUANTIZE(dequantize_by_ctas, CTA)
SUM(sum_by_warps, WARP)
SUM(sum_by_ctas, CTA)
