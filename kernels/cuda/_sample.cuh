// A sample of a vector: one element of each of many equal stretches.
#pragma once

#include "_select.cuh"

// By a sequence without a period that the vector may share.
DEVICE i64 sample_place(u64 number, u64 stretch) {
    u64 word = (number * 0x9E3779B97F4A7C15ull) >> 32;
    return i64(number * stretch + (word * stretch >> 32));
}

// Call take(number, bits) for the numbers `first`, `first + step`, ... of a sample of q's
// magnitudes. Far places, eight at a time: all are asked for before any is waited for.
template <class Take>
DEVICE void draw(const Source& from, i64 size, i64 first, i64 step, Take take) {
    constexpr int AT_ONCE = 8;
    const float* residual = from.feedback.residual;
    u64 stretch = u64(from.n) / u64(size);
    for (; first < size; first += AT_ONCE * step) {
        float x[AT_ONCE], left[AT_ONCE];
        for (int e = 0; e < AT_ONCE; ++e) {
            i64 i = sample_place(u64(min(first + e * step, size - 1)), stretch);
            x[e] = load(from.x, i), left[e] = residual ? residual[i] : 0.0f;
        }
        for (int e = 0; e < AT_ONCE; ++e) {
            float p = residual ? x[e] + from.feedback.loss_scale * left[e] : x[e];
            i64 number = first + e * step;
            if (number < size) take(number, magnitude_bits(p * from.feedback.back));
        }
    }
}
