// Setting bits of a bitmap at any address.
#pragma once

#include "_bytes.cuh"
#include "_team.cuh"

// Set a bit for each lane that is given one; all lanes of a warp must come.
//
// Neighbours whose bits lie in one word, as those of increasing indices do, set them together. The
// word may have a few bytes beside the bitmap, which are left as they are.
DEVICE void set_bit_of_lane(u8* bitmap, i64 bit, bool given) {
    constexpr u32 NOWHERE = 0xFFFFFFFFu;
    int lane = int(threadIdx.x) % WARP, lead = lead_of<u32>(bitmap);
    u64 from_word = u64(bit + 8 * lead);
    u32 word = given ? u32(from_word / 32) : NOWHERE, bits = given ? 1u << from_word % 32 : 0;
    for (int step = 1; step < WARP; step *= 2) {
        u32 other = __shfl_up_sync(WHOLE_WARP, word, step);
        u32 theirs = __shfl_up_sync(WHOLE_WARP, bits, step);
        if (lane >= step && other == word) bits |= theirs;
    }
    u32 next = __shfl_down_sync(WHOLE_WARP, word, 1);
    bool last = lane == WARP - 1 || next != word;
    if (given && last) atomicOr(reinterpret_cast<u32*>(bitmap - lead) + word, bits);
}
