// Sums of several payloads, written once.
//
// A launch takes up to eight payloads, and the sums of those before it if there are any. What a
// payload has is given as eight parameters, null where there are fewer payloads: the compiler then
// knows where each pointer is. The bytes of all payloads, or those of four of them for two fours of
// elements, which takes fewer registers, are asked for before the first are used.
#pragma once

#include "_values.cuh"

constexpr int CROWD = 4;  // CTAs that share the registers: fewer would ask memory for too little

constexpr int MOST = 8;  // payloads of a launch; as in _work.py
constexpr int ASKED = 4;  // of them, whose bytes are asked for together

#define EACH_OF(type, name)                                                                       \
    type name##0, type name##1, type name##2, type name##3, type name##4, type name##5,           \
        type name##6, type name##7
#define ALL_OF(name) {name##0, name##1, name##2, name##3, name##4, name##5, name##6, name##7}

#define FOR_PAYLOADS(r) UNROLLED for (int r = 0; r < MOST; ++r)
#define FOR_ASKED(first) UNROLLED for (int first = 0; first < MOST; first += ASKED)
#define FOR_EACH_ASKED(r) UNROLLED for (int r = 0; r < ASKED; ++r)

struct Sums {
    const float* before;  // or null
    void* out;
    int kind;
};

DEVICE bool are_even(Sums sums) {
    return is_aligned(sums.before, 16) && is_even({sums.out, sums.kind});
}

// `codes(r)`: the bytes of payload r, or null.
template <class Payloads>
DEVICE bool have_even_codes(const Payloads& payloads) {
    bool even = true;
    FOR_PAYLOADS(r) even = even && is_aligned(payloads.codes(r), 4);
    return even;
}

// The sums before the first payload.
template <bool EVEN = false>
DEVICE void begin4(Sums sums, i64 i, int count, float (&values)[4]) {
    for (int u = 0; u < 4; ++u) values[u] = 0.0f;
    if (sums.before) load4<EVEN>(sums.before, i, count, values);
}

// The product rounded first.
DEVICE void add4(float (&values)[4], const float (&decoded)[4], float weight) {
    for (int u = 0; u < 4; ++u) {
        float product = weight * decoded[u];
        values[u] = values[u] + product;
    }
}

// Four of out, or fewer. In an index of fours, the compiler sees that one access may write four: in
// the sum of where a block and a plane of it begin, it does not, and writes them one by one.
template <bool EVEN, class T>
DEVICE void store_sums4(T* out, i64 i, int count, const T (&values)[4]) {
    if (!EVEN || count < 4) return store4(out, i, count, values);
    Four<T> four;
    for (int u = 0; u < 4; ++u) four.of[u] = values[u];
    reinterpret_cast<Four<T>*>(out)[i / 4] = four;
}

// EVEN: `are_even(sums)`, and i is a multiple of four.
template <bool EVEN = false>
DEVICE void finish4(Sums sums, i64 i, int count, const float (&values)[4]) {
    if (sums.kind == FLOAT32)
        return store_sums4<EVEN>(static_cast<float*>(sums.out), i, count, values);
    u16 halves[4];
    for (int u = 0; u < 4; ++u) halves[u] = u16(narrow_bits(values[u], sums.kind));
    store_sums4<EVEN>(static_cast<u16*>(sums.out), i, count, halves);
}
