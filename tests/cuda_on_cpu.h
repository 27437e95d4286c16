// CUDA on a CPU: enough of the language to run kernels in tests, one thread after the other.
//
// The threads of a block are fibers. One runs until it waits, at a barrier or for its warp; then
// another one does. Blocks, and the threads that may go on, are taken in an order drawn from a
// seed, so that code that relies on an order gives other results from seed to seed. Shared memory
// is poisoned before each block. Where no thread can go on, or an address is not as even as what is
// read or written there demands, the launch ends with the reason.
//
// Force-included before a .cu file, which then is C++.

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
#define __restrict__ __restrict
#define __grid_constant__
#define __shared__ static __attribute__((section("shared_memory")))

#define EXPORTED __attribute__((used, visibility("default")))

using std::max, std::min;

struct uint3 {
    unsigned x, y, z;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

// ---- threads ---------------------------------------------------------------------------------

static uint3 threadIdx, blockIdx, blockDim, gridDim;

extern "C" char __start_shared_memory[] __attribute__((weak));
extern "C" char __stop_shared_memory[] __attribute__((weak));

namespace emulation {

constexpr int WARP_LANES = 32;
constexpr size_t STACK_BYTES = 128 << 10;
constexpr unsigned char POISON = 0xA5;

enum class State { READY, AT_BARRIER, IN_WARP, DONE };

struct Fiber {
    State state = State::READY;
    bool begun = false;
    unsigned number = 0, mask = 0;
    const char* operation = "";
    uint64_t given = 0;
    uint64_t seen[WARP_LANES];  // what the lanes of the warp gave, once all had come
    jmp_buf resume;
    ucontext_t start;
    std::vector<char> stack;
};

static std::vector<Fiber> fibers(1024);
static Fiber* current = nullptr;
static jmp_buf scheduler;
static ucontext_t scheduler_start;

inline void wait(State state) {
    current->state = state;
    if (_setjmp(current->resume) == 0) _longjmp(scheduler, 1);
}

// The first entry of a fiber goes through a context of its own, and every later change of fibers
// through a jump, which asks the system for nothing; so a fiber that is done waits for a new block.
inline void run_body();
inline void enter() { for (;; wait(State::DONE)) run_body(); }

inline void resume(Fiber& fiber) {
    current = &fiber;
    threadIdx = {fiber.number, 0, 0};
    if (_setjmp(scheduler)) return;
    if (fiber.begun) _longjmp(fiber.resume, 1);
    fiber.begun = true;
    if (fiber.stack.empty()) fiber.stack.resize(STACK_BYTES);
    getcontext(&fiber.start);
    fiber.start.uc_stack.ss_sp = fiber.stack.data();
    fiber.start.uc_stack.ss_size = fiber.stack.size();
    fiber.start.uc_link = &scheduler_start;
    makecontext(&fiber.start, enter, 0);
    setcontext(&fiber.start);
}

// Numbers in an order drawn from a seed. What the standard library has for it takes g++ long.
struct Order {
    std::vector<unsigned> of;
    uint64_t state;

    Order(unsigned count, unsigned seed) : state(seed) {
        for (unsigned i = 0; i < count; ++i) of.push_back(i);
    }

    void shuffle() {
        for (size_t end = of.size(); end > 1; --end) {
            uint64_t word = state += 0x9E3779B97F4A7C15u;  // SplitMix64
            word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9u;
            word = (word ^ word >> 27) * 0x94D049BB133111EBu;
            std::swap(of[end - 1], of[(word ^ word >> 31) % end]);
        }
    }
};

inline std::string names(const std::vector<unsigned>& numbers) {
    std::string text;
    for (unsigned number : numbers) text += (text.empty() ? "" : ", ") + std::to_string(number);
    return text;
}

// Let a warp's lanes go on if all that one of them waits for have come to the same operation.
inline bool release_warp(unsigned first, unsigned threads) {
    bool released = false;
    for (unsigned lane = 0; lane < WARP_LANES && first + lane < threads; ++lane) {
        Fiber& fiber = fibers[first + lane];
        if (fiber.state != State::IN_WARP) continue;
        if (!(fiber.mask >> lane & 1))
            throw std::runtime_error(fiber.operation + std::string(": the caller is not in it"));
        bool complete = true;
        for (unsigned other = 0; other < WARP_LANES; ++other) {
            if (!(fiber.mask >> other & 1)) continue;
            const Fiber* peer = first + other < threads ? &fibers[first + other] : nullptr;
            complete = complete && peer && peer->state == State::IN_WARP &&
                       peer->mask == fiber.mask && !std::strcmp(peer->operation, fiber.operation);
        }
        if (!complete) continue;
        unsigned mask = fiber.mask;
        for (unsigned one = 0; one < WARP_LANES; ++one) {
            if (!(mask >> one & 1)) continue;
            for (unsigned other = 0; other < WARP_LANES; ++other)
                fibers[first + one].seen[other] =
                    mask >> other & 1 ? fibers[first + other].given : 0xA5A5A5A5A5A5A5A5u;
            fibers[first + one].state = State::READY;
        }
        released = true;
    }
    return released;
}

inline void release_someone(unsigned threads) {
    bool released = false, all_at_barrier = true;
    for (unsigned first = 0; first < threads; first += WARP_LANES)
        released = release_warp(first, threads) || released;
    if (released) return;
    std::vector<unsigned> stuck;
    for (unsigned i = 0; i < threads; ++i) {
        all_at_barrier = all_at_barrier && fibers[i].state != State::IN_WARP;
        if (fibers[i].state == State::IN_WARP) stuck.push_back(i);
    }
    if (!all_at_barrier)
        throw std::runtime_error(
            "threads " + names(stuck) + " wait for lanes of their warp that never come, in " +
            fibers[stuck[0]].operation);
    std::vector<unsigned> gone;
    for (unsigned i = 0; i < threads; ++i) {
        if (fibers[i].state == State::DONE) gone.push_back(i);
        if (fibers[i].state == State::AT_BARRIER) fibers[i].state = State::READY;
    }
    if (!gone.empty())
        throw std::runtime_error(
            "a barrier is waited at after threads " + names(gone) + " have ended");
}

inline void run_block(Order& order) {
    unsigned threads = unsigned(order.of.size());
    if (__start_shared_memory)
        std::memset(__start_shared_memory, POISON, __stop_shared_memory - __start_shared_memory);
    for (unsigned i = 0; i < threads; ++i) {
        fibers[i].begun = fibers[i].begun && fibers[i].state == State::DONE;
        fibers[i].state = State::READY;
        fibers[i].number = i;
    }
    while (true) {
        order.shuffle();
        bool ran = false, live = false;
        for (unsigned i : order.of) {
            if (fibers[i].state == State::READY) {
                resume(fibers[i]);
                ran = true;
            }
            live = live || fibers[i].state != State::DONE;
        }
        if (!live) return;
        if (!ran) release_someone(threads);
    }
}

template <class T>
uint64_t as_word(T value) {
    static_assert(sizeof(T) <= 8 && std::is_trivially_copyable<T>::value, "eight bytes at most");
    uint64_t word = 0;
    std::memcpy(&word, &value, sizeof(T));
    return word;
}

// Give the warp a value, and wait until all lanes of the mask have; theirs are in `seen` then.
template <class T>
void meet(const char* operation, unsigned mask, T value) {
    current->operation = operation;
    current->mask = mask;
    current->given = as_word(value);
    wait(State::IN_WARP);
}

template <class T>
T from_lane(const char* operation, unsigned lane) {
    if (lane >= WARP_LANES || !(current->mask >> lane & 1))
        throw std::runtime_error(std::string(operation) + " reads a lane that takes no part");
    T value;
    std::memcpy(&value, &current->seen[lane], sizeof(T));
    return value;
}

inline unsigned own_lane() { return threadIdx.x % WARP_LANES; }

// ---- kernels ---------------------------------------------------------------------------------

struct Kernel {
    const char* name;
    unsigned threads;
    std::vector<int> sizes;
    void (*call)(void** arguments);
};

static std::vector<Kernel> kernels;

inline const Kernel* find_kernel(const char* name) {
    for (const Kernel& kernel : kernels)
        if (!std::strcmp(kernel.name, name)) return &kernel;
    return nullptr;
}

template <auto> struct Registered;

template <class... P, void (*FUNCTION)(P...)>
struct Registered<FUNCTION> {
    template <size_t... I>
    static void call(void** arguments, std::index_sequence<I...>) {
        FUNCTION(*static_cast<std::remove_cv_t<P>*>(arguments[I])...);
    }
    Registered(const char* name, unsigned threads) {
        auto with = [](void** arguments) { call(arguments, std::index_sequence_for<P...>{}); };
        kernels.push_back({name, threads, {int(sizeof(P))...}, with});
    }
};

static const Kernel* running = nullptr;
static void** arguments_now = nullptr;
static std::string error_now;

inline void run_body() {
    try {
        running->call(arguments_now);
    } catch (const std::exception& error) {
        error_now = error.what();  // an exception must not leave its fiber
    }
}

struct Access {
    const char* file;
    unsigned line, column;
    const void* type;
    unsigned char log_alignment, kind;
};

}  // namespace emulation

// What g++ has called where an address is odd (-fsanitize=alignment); ends the thread.
extern "C" inline __attribute__((used)) void __ubsan_handle_type_mismatch_v1(
    emulation::Access* access, uintptr_t) {
    if (emulation::error_now.empty())
        emulation::error_now = access->file + (":" + std::to_string(access->line)) +
            ": an address is no multiple of " + std::to_string(1 << access->log_alignment);
    emulation::current->begun = false;
    emulation::wait(emulation::State::DONE);
}

#define ENTRY(name, threads, parameters)                                        \
    static void name parameters;                                                \
    static const emulation::Registered<&name> name##_registered(#name, threads); \
    static void name parameters
#define KERNEL(name, threads, parameters) ENTRY(name, threads, parameters)

// Number of parameters, and their sizes in bytes; -1 if there is no such kernel.
extern "C" inline EXPORTED int kernel_parameters(const char* name, int* sizes, int room) {
    const emulation::Kernel* kernel = emulation::find_kernel(name);
    if (!kernel) return -1;
    int count = int(kernel->sizes.size());
    std::copy_n(kernel->sizes.begin(), min(count, room), sizes);
    return count;
}

// Run all blocks; on failure, return 1 and say why.
extern "C" inline EXPORTED int run_kernel(
    const char* name, unsigned blocks, void** arguments, unsigned seed, char* error, size_t room) {
    using namespace emulation;
    running = find_kernel(name), arguments_now = arguments;
    error_now.clear();
    blockDim = {running->threads, 1, 1};
    gridDim = {blocks, 1, 1};
    Order order(blocks, seed), threads(running->threads, ~seed);
    order.shuffle();
    try {
        for (unsigned block : order.of) {
            blockIdx = {block, 0, 0};
            run_block(threads);
            if (!error_now.empty()) throw std::runtime_error(error_now);
        }
    } catch (const std::exception& reason) {
        std::snprintf(error, room, "%s", error_now.empty() ? reason.what() : error_now.c_str());
        return 1;
    }
    return 0;
}

// ---- what a thread may call ------------------------------------------------------------------

inline void __syncthreads() { emulation::wait(emulation::State::AT_BARRIER); }
inline void __syncwarp(unsigned mask = ~0u) { emulation::meet("__syncwarp", mask, 0); }
inline void __threadfence() {}

template <class T>
T __shfl_sync(unsigned mask, T value, int lane, int width = 32) {
    emulation::meet("__shfl_sync", mask, value);
    unsigned base = emulation::own_lane() / width * width;
    return emulation::from_lane<T>("__shfl_sync", base + unsigned(lane) % width);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int change) {
    emulation::meet("__shfl_xor_sync", mask, value);
    return emulation::from_lane<T>("__shfl_xor_sync", emulation::own_lane() ^ unsigned(change));
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned distance) {
    emulation::meet("__shfl_up_sync", mask, value);
    unsigned lane = emulation::own_lane();
    return lane < distance ? value : emulation::from_lane<T>("__shfl_up_sync", lane - distance);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned distance) {
    emulation::meet("__shfl_down_sync", mask, value);
    unsigned lane = emulation::own_lane() + distance;
    return lane > 31 ? value : emulation::from_lane<T>("__shfl_down_sync", lane);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
    emulation::meet("__ballot_sync", mask, predicate ? 1 : 0);
    unsigned votes = 0;
    for (unsigned lane = 0; lane < 32; ++lane)
        if (mask >> lane & 1)
            votes |= emulation::from_lane<unsigned>("__ballot_sync", lane) << lane;
    return votes;
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int vote) { return __ballot_sync(mask, vote) == mask; }

inline unsigned __float_as_uint(float value) { return __builtin_bit_cast(unsigned, value); }
inline float __uint_as_float(unsigned bits) { return __builtin_bit_cast(float, bits); }
inline long long __double_as_longlong(double value) { return __builtin_bit_cast(long long, value); }
inline double __longlong_as_double(long long bits) { return __builtin_bit_cast(double, bits); }
inline int __popc(unsigned word) { return __builtin_popcount(word); }
inline int __popcll(unsigned long long word) { return __builtin_popcountll(word); }
inline int __clz(unsigned word) { return word ? __builtin_clz(word) : 32; }
inline int __ffs(unsigned word) { return __builtin_ffs(int(word)); }
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned(uint64_t(a) * b >> 32); }

template <class T>
T atomicAdd(T* at, T value) { return std::exchange(*at, T(*at + value)); }
template <class T>
T atomicMax(T* at, T value) { return std::exchange(*at, max(*at, value)); }
template <class T>
T atomicMin(T* at, T value) { return std::exchange(*at, min(*at, value)); }
template <class T>
T atomicOr(T* at, T value) { return std::exchange(*at, T(*at | value)); }
