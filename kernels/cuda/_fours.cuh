// Elements of any type, four neighbours at a time: in one access where the address allows it.
#pragma once

#include "_values.cuh"

template <class T>
struct alignas(4 * sizeof(T)) Four {
    T of[4];
};

// `count` elements from i on, at most four; zeros in the place of those that lack.
template <class T>
DEVICE void load4(const T* x, i64 i, int count, T (&values)[4]) {
    if (count >= 4 && is_aligned(x + i, sizeof(Four<T>))) {
        Four<T> four = *reinterpret_cast<const Four<T>*>(x + i);
        for (int u = 0; u < 4; ++u) values[u] = four.of[u];
        return;
    }
    for (int u = 0; u < 4; ++u) values[u] = u < count ? x[i + u] : T(0);
}

template <class T>
DEVICE void store4(T* out, i64 i, int count, const T (&values)[4]) {
    if (count >= 4 && is_aligned(out + i, sizeof(Four<T>))) {
        Four<T> four;
        for (int u = 0; u < 4; ++u) four.of[u] = values[u];
        *reinterpret_cast<Four<T>*>(out + i) = four;
        return;
    }
    for (int u = 0; u < 4; ++u)
        if (u < count) out[i + u] = values[u];
}
