// Random words and fractions for all elements of an array; see compressa.kernels.philox.

#include "_philox.cuh"
#include "_values.cuh"

// A thread makes the four words of a call.
KERNEL(
    random_words, CTA,
    (u32* out, i64 n, u32 seed, u32 stream, u32 step, u32 parameter, i64 start)) {
    Noise noise = {seed, stream, step, parameter, start};
    i64 first = start / 4, calls = (start + n - 1) / 4 - first + 1;
    for (i64 call = team_number<1>(); call < calls; call += team_count<1>()) {
        u32 words[4];
        philox(noise, u64(first + call), words);
        i64 i = 4 * (first + call) - start;
        if (i >= 0) {
            store4(out, i, int(min(i64(4), n - i)), words);
            continue;
        }
        for (int u = 0; u < 4; ++u)
            if (i + u >= 0 && i + u < n) out[i + u] = words[u];
    }
}

KERNEL(
    random_fractions, CTA,
    (u32* out, i64 n, u32 seed, u32 stream, u32 step, u32 parameter, i64 start)) {
    Noise noise = {seed, stream, step, parameter, start};
    for_random_fractions(noise, n, [&](i64 i, int count, const u32(&fractions)[4]) {
        store4(out, i, count, fractions);
    });
}
