// Kernels of a source in another form: one launch does what several launches of a kernel would.
//
// A CTA does what a CTA of one of those launches would, with the arguments of that one: so each
// gives the bits that it gives alone. To the kernels, `blockIdx` and `gridDim` are those of the
// launch that a CTA stands for. The arguments of all are one parameter, so nothing is copied.
//
// Included before the source, whose KERNELs it redefines.
#pragma once

#include "_kernel.cuh"

constexpr int MANY_BYTES = 4000;  // for arguments; parameters of a kernel have 4 KB; see _many.py

template <class T>
constexpr int SLOTS = int((sizeof(T) + 7) / 8);  // each argument begins at a multiple of 8 bytes

template <class... A>
struct Many {
    static constexpr int EACH = (SLOTS<A> + ... + 0);
    static constexpr int MOST = MANY_BYTES / (8 * EACH + 4);
    u64 arguments[MOST][EACH];
    int first_block[MOST + 1];
    int count;
};

template <class... A>
__device__ Many<A...> many_like(void (*)(A...));

struct CtaOfLaunch {
    unsigned block, blocks;
};

// This CTA, in the launch that it stands for.
DEVICE CtaOfLaunch& own_cta() {
    __shared__ CtaOfLaunch cta;
    return cta;
}

struct InGrid {
    unsigned x;
};

// The launch that this CTA stands for. All threads of it come here.
template <class AnyMany>
DEVICE int own_launch(const AnyMany& many) {
    int block = int(blockIdx.x), low = 0, high = many.count;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (many.first_block[middle] <= block) low = middle;
        else high = middle;
    }
    if (threadIdx.x == 0) {
        int first = many.first_block[low];
        own_cta() = {unsigned(block - first), unsigned(many.first_block[low + 1] - first)};
    }
    __syncthreads();
    return low;
}

// The next argument.
template <class T>
DEVICE T taken(const u64*& slots) {
    T value = *reinterpret_cast<const T*>(slots);
    slots += SLOTS<T>;
    return value;
}

// What is in braces is worked out from left to right, as the arguments of a call need not be.
template <auto KERNEL_FOR_ONE>
struct Call {
    template <class... A>
    __device__ __forceinline__ Call(A... arguments) {
        KERNEL_FOR_ONE(arguments...);
    }
};

template <auto KERNEL_FOR_ONE, class... A>
DEVICE void run_own(const Many<A...>& many) {
    const u64* slots = many.arguments[own_launch(many)];
    Call<KERNEL_FOR_ONE>{taken<A>(slots)...};
}

#ifdef ENTRY
#define ENTRY_ALONE ENTRY
#else
#define ENTRY(name, threads, parameters) \
    extern "C" __global__ void __launch_bounds__(threads) name parameters
#define ENTRY_ALONE(name, threads, parameters) \
    extern "C" __global__ void __launch_bounds__(threads, 1) name parameters
#endif

#define FORM(entry, name, threads, parameters)                                            \
    DEVICE void name##_for_one parameters;                                                \
    entry(                                                                                \
        name, threads,                                                                    \
        (const __grid_constant__ decltype(many_like(&name##_for_one)) many)) {            \
        run_own<&name##_for_one>(many);                                                   \
    }                                                                                     \
    DEVICE void name##_for_one parameters

#undef KERNEL
#undef CROWDED
#define KERNEL(name, threads, parameters) FORM(ENTRY, name, threads, parameters)
// Arguments that lie where a CTA finds out are in registers. What crowds those without them takes
// as many as it needs, and shares with no other CTA: it would spill.
#define CROWDED(name, threads, ctas, parameters) FORM(ENTRY_ALONE, name, threads, parameters)

#define blockIdx (InGrid{own_cta().block})
#define gridDim (InGrid{own_cta().blocks})
