// What every kernel is written with: integers of known width, and how an entry point is declared.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define DEVICE static __device__ __forceinline__
#define METHOD __device__ __forceinline__

// Elsewhere than on a GPU, whoever compiles this brings a KERNEL of their own, which notes the
// kernel and the types of its parameters. CROWDED: so many CTAs share a multiprocessor's registers.
#ifdef KERNEL
#define CROWDED(name, threads, ctas, parameters) KERNEL(name, threads, parameters)
#else
#define KERNEL(name, threads, parameters) \
    extern "C" __global__ void __launch_bounds__(threads) name parameters
#define CROWDED(name, threads, ctas, parameters) \
    extern "C" __global__ void __launch_bounds__(threads, ctas) name parameters
#endif

constexpr u32 WHOLE_WARP = 0xFFFFFFFFu;
constexpr int WARP = 32;

// UNROLLED: without, what a loop holds would not be in registers. RARE: what is rarely called, and
// compiled once for all kernels of a source.
#ifdef __CUDACC__
#define UNROLLED _Pragma("unroll")
#define RARE static __device__ __noinline__
#else
#define UNROLLED
#define RARE static
#endif
