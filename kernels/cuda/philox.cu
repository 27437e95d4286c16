// Random words and fractions for all elements of an array; see compressa.kernels.philox.

#include "_philox.cuh"
#include "_values.cuh"

// Whether one access writes four elements, of which the first has a number that is a multiple of
// four.
DEVICE bool are_numbered_even(const u32* out, const Noise& noise) {
    return is_aligned(out - noise.start % 4, 16);
}

// Four of these, at most. In an index of fours, the compiler sees that one access may write them.
template <bool EVEN>
DEVICE void store_numbered(u32* out, const Noise& noise, i64 i, int count, const u32 (&words)[4]) {
    if (!EVEN || count < 4) return store4(out, i, count, words);
    i64 before = noise.start % 4;
    uint4* fours = reinterpret_cast<uint4*>(out - before);
    fours[(i + before) / 4] = make_uint4(words[0], words[1], words[2], words[3]);
}

// A thread makes the four words of a call.
template <bool EVEN>
DEVICE void fill_with_words(u32* out, i64 n, const Noise& noise) {
    i64 first = noise.start / 4, calls = (noise.start + n - 1) / 4 - first + 1;
    for (i64 call = team_number<1>(); call < calls; call += team_count<1>()) {
        u32 words[4];
        philox(noise, u64(first + call), words);
        i64 i = 4 * (first + call) - noise.start;
        if (i >= 0) {
            store_numbered<EVEN>(out, noise, i, int(min(i64(4), n - i)), words);
            continue;
        }
        for (int u = 0; u < 4; ++u)
            if (i + u >= 0 && i + u < n) out[i + u] = words[u];
    }
}

KERNEL(
    random_words, CTA,
    (u32* out, i64 n, u32 seed, u32 stream, u32 step, u32 parameter, i64 start)) {
    Noise noise = {seed, stream, step, parameter, start};
    if (are_numbered_even(out, noise)) fill_with_words<true>(out, n, noise);
    else fill_with_words<false>(out, n, noise);
}

template <bool EVEN>
DEVICE void fill_with_fractions(u32* out, i64 n, const Noise& noise) {
    for_random_fractions(noise, n, [&](i64 i, int count, const u32(&fractions)[4]) {
        store_numbered<EVEN>(out, noise, i, count, fractions);
    });
}

KERNEL(
    random_fractions, CTA,
    (u32* out, i64 n, u32 seed, u32 stream, u32 step, u32 parameter, i64 start)) {
    Noise noise = {seed, stream, step, parameter, start};
    if (are_numbered_even(out, noise)) fill_with_fractions<true>(out, n, noise);
    else fill_with_fractions<false>(out, n, noise);
}
