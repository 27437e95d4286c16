// A number that a kernel finds out for the host; see `_later.py`, which has it cleared before.
#pragma once

#include "_team.cuh"

KERNEL(clear_answer, CTA, (u64* answer)) {
    if (blockIdx.x == 0 && threadIdx.x == 0) *answer = 0;
}

// The answer is 1 if any thread says so; all lanes of a warp must come.
DEVICE void answer_any(u64* answer, bool found) {
    bool any = __any_sync(WHOLE_WARP, found);
    if (any && threadIdx.x % WARP == 0) atomicMax(answer, u64(1));
}
