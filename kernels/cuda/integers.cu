// Integers of a scale that all ranks share; see compressa.kernels.integers.

#include "_philox.cuh"
#include "_values.cuh"

typedef signed char i8;
typedef short i16;

template <class Integer>
DEVICE void round_all(
    const float* x, double factor, double most, Integer* out, i64 n, const Noise& noise) {
    for_random_fractions(noise, n, [&](i64 i, int count, const u32(&fractions)[4]) {
        float values[4];
        Integer integers[4];
        load4(x, i, count, values);
        for (int u = 0; u < 4; ++u) {
            double t = double(values[u]) * factor;
            t = t < most ? t : most;  // a NaN too
            t = t > -most ? t : -most;
            i64 parts = i64(t * double(1 << FRACTION_BITS));
            integers[u] = Integer((parts + i64(fractions[u])) >> FRACTION_BITS);
        }
        store4(out, i, count, integers);
    });
}

template <class Integer>
DEVICE void scale_all(const Integer* q, double scale, float* out, i64 n) {
    for (i64 i = 4 * team_number<1>(); i < n; i += 4 * team_count<1>()) {
        int count = int(min(i64(4), n - i));
        Integer integers[4];
        float values[4];
        load4(q, i, count, integers);
        for (int u = 0; u < 4; ++u) values[u] = float(double(integers[u]) * scale);
        store4(out, i, count, values);
    }
}

#define INTEGERS(Integer, BITS)                                                                  \
    KERNEL(                                                                                      \
        round_to_##BITS, CTA,                                                                    \
        (const float* x, double factor, double most, Integer* out, i64 n, u32 seed, u32 stream,  \
         u32 step, u32 parameter, i64 start)) {                                                  \
        Noise noise = {seed, stream, step, parameter, start};                                    \
        round_all(x, factor, most, out, n, noise);                                               \
    }                                                                                            \
    KERNEL(scale_##BITS, CTA, (const Integer* q, double scale, float* out, i64 n)) {             \
        scale_all(q, scale, out, n);                                                             \
    }

INTEGERS(i8, 8)
INTEGERS(i16, 16)
INTEGERS(int, 32)
