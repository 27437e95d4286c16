// Philox4x32-7: the same words as everywhere; see compressa.kernels.philox.
#pragma once

#include "_kernel.cuh"
#include "_team.cuh"

constexpr int ROUNDS = 7;
constexpr int ROW = 1024;             // elements whose numbers are drawn together
constexpr int FRACTION_BITS = 23;
constexpr int ROW_BLOCKS = ROW / 8;   // each gives four words of two numbers

struct Noise {
    u32 seed, stream, step, parameter;
    i64 start;  // element number of the first element
};

// Whether the numbers of fours that begin at a multiple of four lie beside each other.
DEVICE bool has_even_numbers(i64 start) { return start % 4 == 0; }

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

// One of the four, without an array that would lie in memory to be indexed.
DEVICE u32 word_of(const u32 (&words)[4], u32 which) {
    return which == 0 ? words[0] : which == 1 ? words[1] : which == 2 ? words[2] : words[3];
}

// The number that a word has for one of its two elements; see `random_fractions`.
DEVICE u32 fraction_of(u32 word, bool second) {
    return second ? word >> (32 - FRACTION_BITS) : word & ((1u << FRACTION_BITS) - 1u);
}

// The 23 bits of an element; see `random_fractions`.
DEVICE u32 random_fraction(const Noise& noise, i64 i) {
    u64 element = u64(noise.start + i);
    u32 column = u32(element % ROW), part = column / ROW_BLOCKS, words[4];
    philox(noise, element / ROW * ROW_BLOCKS + column % ROW_BLOCKS, words);
    return fraction_of(word_of(words, part / 2), part % 2);
}

// Random numbers for a span of elements, drawn by all of a CTA together.
//
// The eight numbers of a call of Philox belong to elements that lie 128 apart in a row of 1024. So
// a CTA draws whole rows into shared memory, word by word, and a span of eight rows costs nine at
// most, wherever in a row it begins.

constexpr int SPAN = 8 * ROW;  // elements that numbers are drawn for at once
constexpr int ROW_WORDS = ROW / 2;
constexpr int SPAN_WORDS = (SPAN / ROW + 1) * ROW_WORDS;

struct Drawn {
    const u32* words;  // two numbers each
    u32 first;         // where the span's own begin, in numbers
};

// The numbers of `size` elements from low on, at most a span. All threads of a CTA come here.
DEVICE Drawn drawn_for_span(const Noise& noise, i64 low, int size) {
    __shared__ uint4 room[SPAN_WORDS / 4];
    u32* words = reinterpret_cast<u32*>(room);
    u64 element = u64(noise.start + low);
    u32 first = u32(element % ROW);
    int rows = (int(first) + size + ROW - 1) / ROW;
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
    u32 column = drawn.first + u32(i), part = column / ROW_BLOCKS;
    return fraction_of(drawn.words[part / 2 * ROW_BLOCKS + column % ROW_BLOCKS], part % 2);
}

// Those of `count` elements from i on, at most four; read at once where they lie so. EVEN: there
// are four, and they do.
template <bool EVEN = false>
DEVICE void drawn_fractions(Drawn drawn, int i, int count, u32 (&fractions)[4]) {
    u32 column = drawn.first + u32(i), part = column / ROW_BLOCKS;
    if (EVEN || (count > 0 && column % 4 == 0)) {
        const u32* words = drawn.words + part / 2 * ROW_BLOCKS + column % ROW_BLOCKS;
        uint4 four = *reinterpret_cast<const uint4*>(words);
        fractions[0] = fraction_of(four.x, part % 2), fractions[1] = fraction_of(four.y, part % 2);
        fractions[2] = fraction_of(four.z, part % 2), fractions[3] = fraction_of(four.w, part % 2);
        return;
    }
    for (int u = 0; u < 4; ++u) fractions[u] = u < count ? drawn_fraction(drawn, i + u) : 0u;
}

// The random numbers of what a CTA has before it: at hand, from element low on, or still to be
// drawn one by one where that is more than fits.
struct Numbers {
    const Noise& noise;
    Drawn drawn;
    i64 low;
    bool at_hand;
};

// For `span` elements from low on. All threads of a CTA come here.
template <bool RANDOM>
DEVICE Numbers numbers_of(const Noise& noise, i64 low, i64 span) {
    Numbers numbers = {noise, {nullptr, 0u}, low, RANDOM && span <= SPAN};
    if (RANDOM && numbers.at_hand) numbers.drawn = drawn_for_span(noise, low, int(span));
    return numbers;
}

// Of `count` elements from i on, at most four.
template <bool EVEN = false>
DEVICE void fractions_of(const Numbers& numbers, i64 i, int count, u32 (&fractions)[4]) {
    if (numbers.at_hand)
        return drawn_fractions<EVEN>(numbers.drawn, int(i - numbers.low), count, fractions);
    for (int u = 0; u < 4; ++u)
        fractions[u] = u < count ? random_fraction(numbers.noise, i + u) : 0u;
}

// The random bits of all elements of an array, for whoever uses every one; see `random_fractions`.

// Each thread's own: thread t has word w of its u-th call at [w][u][t].
struct OwnWords {
    u32 of[4][4][CTA];
};

DEVICE OwnWords& own_words() {
    __shared__ OwnWords words;
    return words;
}

// Give use(i, count, fractions) the numbers of the elements i to i + count - 1, count being 4 or 1.
//
// A call of Philox has the numbers of elements in each eighth of a row. A thread makes four calls,
// for four neighbours in each. Its words lie in shared memory: registers would take half the warps
// for them, and an array that is indexed as it goes would lie in local memory.
template <class Use>
DEVICE void for_random_fractions(const Noise& noise, i64 n, Use use) {
    constexpr int EIGHTHS = 8, PARTS = ROW / EIGHTHS / 4;
    auto& words = own_words().of;
    i64 first = noise.start / ROW, rows = (noise.start + n - 1) / ROW - first + 1;
    for (i64 part = team_number<1>(); part < rows * PARTS; part += team_count<1>()) {
        i64 row = first + part / PARTS, column = 4 * (part % PARTS);
        for (int u = 0; u < 4; ++u) {
            u32 four[4];
            philox(noise, u64(row * ROW_BLOCKS + column + u), four);
            for (int w = 0; w < 4; ++w) words[w][u][threadIdx.x] = four[w];
        }
        for (int eighth = 0; eighth < EIGHTHS; ++eighth) {
            u32 fractions[4];
            for (int u = 0; u < 4; ++u)
                fractions[u] = fraction_of(words[eighth / 2][u][threadIdx.x], eighth % 2);
            i64 i = row * ROW + eighth * (ROW / EIGHTHS) + column - noise.start;
            if (i >= 0 && i + 4 <= n) {
                use(i, 4, fractions);
                continue;
            }
            for (int u = 0; u < 4; ++u) {
                u32 one[4] = {fractions[u], 0, 0, 0};
                if (i + u >= 0 && i + u < n) use(i + u, 1, one);
            }
        }
    }
}
