// Philox4x32-7: the same words as everywhere; see compressa.kernels.philox.
#pragma once

#include "_kernel.cuh"

constexpr int ROUNDS = 7;
constexpr int ROW = 1024;             // elements whose numbers are drawn together
constexpr int FRACTION_BITS = 23;
constexpr int ROW_BLOCKS = ROW / 8;   // each gives four words of two numbers

struct Noise {
    u32 seed, stream, step, parameter;
    i64 start;  // element number of the first element
};

DEVICE void philox(const Noise& noise, u64 block, u32 (&words)[4]) {
    u32 c0 = u32(block), c1 = u32(block >> 32), c2 = noise.step, c3 = noise.parameter;
    u32 k0 = noise.seed, k1 = noise.stream;
    for (int round = 0; round < ROUNDS; ++round) {
        u32 low0 = c0 * 0xD2511F53u, high0 = __umulhi(c0, 0xD2511F53u);
        u32 low1 = c2 * 0xCD9E8D57u, high1 = __umulhi(c2, 0xCD9E8D57u);
        c0 = high1 ^ c1 ^ k0, c1 = low1;
        c2 = high0 ^ c3 ^ k1, c3 = low0;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    words[0] = c0, words[1] = c1, words[2] = c2, words[3] = c3;
}

// The number that a word has for one of its two elements; see `random_fractions`.
DEVICE u32 fraction_of(u32 word, bool second) {
    return second ? word >> (32 - FRACTION_BITS) : word & ((1u << FRACTION_BITS) - 1u);
}

// The 23 bits of an element; see `random_fractions`.
DEVICE u32 random_fraction(const Noise& noise, i64 i) {
    u64 element = u64(noise.start + i);
    u32 place = u32(element % ROW), part = place / ROW_BLOCKS, words[4];
    philox(noise, element / ROW * ROW_BLOCKS + place % ROW_BLOCKS, words);
    u32 which = part / 2;
    u32 word = which == 0 ? words[0] : which == 1 ? words[1] : which == 2 ? words[2] : words[3];
    return fraction_of(word, part % 2);
}
