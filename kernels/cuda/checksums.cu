// A sum of mixed words, which is the same in any order; see compressa.kernels.checksums.

#include "_answer.cuh"
#include "_bytes.cuh"

constexpr u64 INDEX = 0x9E3779B97F4A7C15ull, MIX = 0xBF58476D1CE4E5B9ull;

DEVICE u64 mixed(u64 word, i64 index) {
    u64 m = word + u64(index) * INDEX;
    m = (m ^ m >> 32) * MIX;
    return m ^ m >> 29;
}

// Words are counted from the first byte, which may lie anywhere.
KERNEL(sum_of_words, CTA, (const u8* data, i64 size, u64* answer)) {
    bool aligned = lead_of<u64>(data) == 0;
    u64 sum = 0;
    for (i64 i = team_number<1>(); 8 * i < size; i += team_count<1>()) {
        bool whole = aligned && 8 * i + 8 <= size;
        sum += mixed(
            whole ? reinterpret_cast<const u64*>(data)[i] : word_of_bytes<u64>(data, size, 8 * i),
            i);
    }
    for (int step = WARP / 2; step; step /= 2) sum += __shfl_xor_sync(WHOLE_WARP, sum, step);
    if (threadIdx.x % WARP == 0) atomicAdd(answer, sum);
}
