// Integers of a scale that all ranks share; see compressa.kernels.integers.

#include "_philox.cuh"
#include "_values.cuh"

typedef signed char i8;
typedef short i16;

template <bool EVEN, class Integer>
DEVICE void round_all(
    const float* x, double factor, double most, Integer* out, i64 n, const Noise& noise) {
    for_random_fractions(noise, n, [&](i64 i, int count, const u32(&fractions)[4]) {
        float values[4];
        Integer integers[4];
        load4<EVEN>(x, i, count, values);
        for (int u = 0; u < 4; ++u) {
            double t = double(values[u]) * factor;
            t = t < most ? t : most;  // a NaN too
            t = t > -most ? t : -most;
            i64 parts = i64(t * double(1 << FRACTION_BITS));
            integers[u] = Integer((parts + i64(fractions[u])) >> FRACTION_BITS);
        }
        store4<EVEN>(out, i, count, integers);
    });
}

template <bool EVEN, class Integer>
DEVICE void scale_all(const Integer* q, double scale, float* out, i64 n) {
    for_batches(n, [&](const Batch& batch) {
        Integer integers[FOURS_A_BATCH][4];
        UNROLLED for (int v = 0; v < FOURS_A_BATCH; ++v)
            load4<EVEN>(q, batch.i[v], batch.count[v], integers[v]);
        UNROLLED for (int v = 0; v < FOURS_A_BATCH; ++v) {
            float values[4];
            for (int u = 0; u < 4; ++u) values[u] = float(double(integers[v][u]) * scale);
            store4<EVEN>(out, batch.i[v], batch.count[v], values);
        }
    });
}

#define INTEGERS(Integer, BITS)                                                                  \
    KERNEL(                                                                                      \
        round_to_##BITS, CTA,                                                                    \
        (const float* __restrict__ x, double factor, double most, Integer* __restrict__ out,     \
         i64 n, u32 seed, u32 stream, u32 step, u32 parameter, i64 start)) {                     \
        Noise noise = {seed, stream, step, parameter, start};                                    \
        bool even = start % 4 == 0 && is_aligned(x, 16) && is_aligned(out, 4 * sizeof(Integer)); \
        if (even) round_all<true>(x, factor, most, out, n, noise);                               \
        else round_all<false>(x, factor, most, out, n, noise);                                   \
    }                                                                                            \
    KERNEL(                                                                                      \
        scale_##BITS, CTA,                                                                       \
        (const Integer* __restrict__ q, double scale, float* __restrict__ out, i64 n)) {         \
        bool even = is_aligned(q, 4 * sizeof(Integer)) && is_aligned(out, 16);                   \
        if (even) scale_all<true>(q, scale, out, n);                                             \
        else scale_all<false>(q, scale, out, n);                                                 \
    }

INTEGERS(i8, 8)
INTEGERS(i16, 16)
INTEGERS(int, 32)
