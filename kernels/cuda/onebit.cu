// Scaled signs; see compressa.kernels.onebit for the arithmetic and the layout.
//
// A team takes a block and reads it into shared memory, where sixteen lanes sum it up in the
// written order and where the planes of signs are gathered from. A block that does not fit goes
// through in pieces, and is read once more for its signs.

#include "_signs.cuh"
#include "_sums.cuh"
#include "_team.cuh"
#include "_values.cuh"

constexpr int STAGED = 32;  // elements of a block, per thread, that shared memory holds

// The team's own part of shared memory: STAGED * THREADS elements.
template <int THREADS>
DEVICE float* team_stage() {
    __shared__ float4 room[CTA * STAGED / 4];
    return reinterpret_cast<float*>(room) + int(threadIdx.x) / THREADS * THREADS * STAGED;
}

// The sum of |p|, in the written order; the block's last piece is in the stage then.
template <int THREADS>
DEVICE double sum_magnitudes(Values x, Feedback feedback, i64 low, int size, float* stage) {
    constexpr int PIECE = STAGED * THREADS;
    double sum = 0.0;
    int lane = team_thread<THREADS>();
    for (int piece = 0; piece < size; piece += PIECE) {
        int count = min(PIECE, size - piece);
        team_sync<THREADS>();  // until the piece before is read by all
        for (int i = 4 * lane; i < count; i += 4 * THREADS) {
            float p[4];
            effective4(x, feedback, low + piece + i, min(4, count - i), p);
            store4(stage, i, 4, p);
        }
        team_sync<THREADS>();
        if (lane < LANES)
            for (int i = lane; i < count; i += LANES)
                sum += double(__uint_as_float(magnitude_bits(stage[i])));
    }
    for (int half = LANES / 2; half; half /= 2) sum += __shfl_xor_sync(WHOLE_WARP, sum, half);
    return team_told<THREADS>(sum);
}

template <int THREADS>
DEVICE void quantize(Values x, Feedback feedback, u8* bits, float* scales, i64 n, int block) {
    float* stage = team_stage<THREADS>();
    i64 blocks = (n + block - 1) / block;
    for (i64 b = team_number<THREADS>(); b < blocks; b += team_count<THREADS>()) {
        i64 low = b * block;
        int size = int(min(i64(block), n - low)), width = sign_width(size);
        double sum = sum_magnitudes<THREADS>(x, feedback, low, size, stage);
        float mean = float(sum / double(size));
        bool finite = is_finite(mean), staged = size <= STAGED * THREADS;
        for (int i = team_thread<THREADS>(); i < width; i += THREADS) {
            u32 byte = 0;
            for (int plane = 0; plane < PLANES && finite; ++plane) {
                int j = plane * width + i;
                if (j >= size) continue;
                float p = staged ? stage[j] : effective(x, feedback, low + j);
                u32 sign = sign_of(p);
                byte |= sign >> 31 << plane;
                float decoded = __uint_as_float(__float_as_uint(mean) | sign);
                if (feedback.residual) feedback.residual[low + j] = (p - decoded) * feedback.back;
            }
            bits[low / PLANES + i] = u8(byte);
        }
        if (team_thread<THREADS>() == 0)
            scales[b] = finite ? mean : __uint_as_float(0x7FC00000u);
    }
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
            float values[4];
            for (int u = 0; u < 4; ++u)
                values[u] = __uint_as_float(scale ^ sign_bit(negative, u));
            combine4(out, low + first, count, values, weight, add);
        });
    }
}

struct Payloads {
    const u8* bits[MOST];
    const float* scales[MOST];
};

template <int THREADS>
DEVICE void sum(const Payloads& payloads, Sums sums, i64 n, int block, float weight) {
    i64 blocks = (n + block - 1) / block;
    for (i64 b = team_number<THREADS>(); b < blocks; b += team_count<THREADS>()) {
        i64 low = b * block;
        int size = int(min(i64(block), n - low)), width = sign_width(size), fours = (width + 3) / 4;
        float steps[MOST];
        FOR_PAYLOADS(r) steps[r] = payloads.bits[r] ? weight * payloads.scales[r][b] : 0.0f;
        for (int t = team_thread<THREADS>(); t < PLANES * fours; t += THREADS) {
            int plane = t / fours, i = 4 * (t % fours), first = plane * width + i;
            int count = min(min(4, width - i), size - first);
            if (count < 1) continue;
            u32 words[MOST];
            float total[4];
            FOR_PAYLOADS(r) if (payloads.bits[r])
                words[r] = load4(payloads.bits[r], low / PLANES + i, min(4, width - i)) >> plane;
            begin4(sums, low + first, count, total);
            FOR_PAYLOADS(r) if (payloads.bits[r])
                for (int u = 0; u < 4; ++u)
                    total[u] = total[u] + __uint_as_float(__float_as_uint(steps[r]) ^
                                                          sign_bit(words[r], u));
            finish4(sums, low + first, count, total);
        }
    }
}

#define QUANTIZE(name, THREADS)                                                                   \
    KERNEL(                                                                                       \
        name, CTA,                                                                                \
        (const void* x, int kind, float* residual, float scale, float back, u8* bits,             \
         float* scales, i64 n, int block)) {                                                      \
        quantize<THREADS>({x, kind}, {residual, scale, back}, bits, scales, n, block);            \
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
