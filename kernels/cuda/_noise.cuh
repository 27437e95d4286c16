// Random numbers for a span of elements, drawn by all of a CTA together.
//
// The eight numbers of a call of Philox belong to elements that lie 128 apart in a row of 1024. So
// a CTA draws whole rows into shared memory, word by word, and a span of eight rows costs nine at
// most, wherever in a row it begins.
#pragma once

#include "_philox.cuh"
#include "_team.cuh"

constexpr int SPAN = 8 * ROW;  // elements that numbers are drawn for at once
constexpr int ROW_WORDS = ROW / 2;
constexpr int SPAN_WORDS = (SPAN / ROW + 1) * ROW_WORDS;

struct Drawn {
    const u32* words;  // two numbers each
    int first;         // where the span's own begin, in numbers
};

// The numbers of `size` elements from low on, at most a span. All threads of a CTA come here.
DEVICE Drawn drawn_for_span(const Noise& noise, i64 low, int size) {
    __shared__ u32 words[SPAN_WORDS];
    u64 element = u64(noise.start + low);
    int first = int(element % ROW), rows = (first + size + ROW - 1) / ROW;
    __syncthreads();  // until those of the last span are read by all
    for (int i = int(threadIdx.x); i < rows * ROW_BLOCKS; i += CTA) {
        u32 four[4];
        philox(noise, element / ROW * ROW_BLOCKS + u64(i), four);
        u32* row = words + i / ROW_BLOCKS * ROW_WORDS + i % ROW_BLOCKS;
        for (int w = 0; w < 4; ++w) row[w * ROW_BLOCKS] = four[w];
    }
    __syncthreads();
    return {words, first};
}

// The 23 bits of element i of the span; see `random_fractions`.
DEVICE u32 drawn_fraction(Drawn drawn, int i) {
    int place = drawn.first + i, part = place / ROW_BLOCKS;
    return fraction_of(drawn.words[part / 2 * ROW_BLOCKS + place % ROW_BLOCKS], part % 2);
}
