// Block-wise quantisation of many vectors by one launch, and sums of their payloads; see
// compressa.kernels.multi_tensor.
//
// A CTA takes a group of blocks, one to a team, all of one vector: so it does what the kernels of
// blockwise.cu or onebit.cu do. The table that says where the vectors lie is a parameter of the
// kernel: it needs no copy to the GPU, and all threads of a CTA read the same entry of it.

#include "_blockwise_held.cuh"
#include "_onebit.cuh"

constexpr int VECTORS = 64;  // of a launch

struct Table {
    const void* x[VECTORS];
    float* residual[VECTORS];  // or null
    u8* codes[VECTORS];
    float* scales[VECTORS];
    float* offsets[VECTORS];  // or null
    i64 start[VECTORS];
    int elems[VECTORS];
    u32 parameter[VECTORS];
    int first_group[VECTORS + 1];  // of all groups; a vector without elements has none
    int vectors;
};

// Where the sums go, and at which bytes of every payload their arrays begin.
struct SumTable {
    void* out[VECTORS];
    i64 codes[VECTORS], scales[VECTORS], offsets[VECTORS];
    i64 total[VECTORS];  // element of the sums so far, where these do not lie in out
    int elems[VECTORS];
    int first_group[VECTORS + 1];
    int vectors;
};

// The vector that a group belongs to.
template <class AnyTable>
DEVICE int vector_of(const AnyTable& table, int group) {
    int low = 0, high = table.vectors;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (table.first_group[middle] <= group) low = middle;
        else high = middle;
    }
    return low;
}

// Calls take(v, b) for each of the CTA's groups, one block to a team: it begins at block b of v.
template <class AnyTable, class Take>
DEVICE void for_groups(const AnyTable& table, int teams, Take take) {
    int groups = table.first_group[table.vectors];
    for (int group = int(blockIdx.x); group < groups; group += int(gridDim.x)) {
        int v = vector_of(table, group);
        take(v, i64(group - table.first_group[v]) * teams);
    }
}

// What all vectors of a launch share.
struct Shared {
    int kind;
    float loss_scale, back;
    Form form;
    u32 seed, stream, step;
};

DEVICE Values values_of(const Table& table, int v, const Shared& shared) {
    return {table.x[v], shared.kind};
}

DEVICE Feedback feedback_of(const Table& table, int v, const Shared& shared) {
    return {table.residual[v], shared.loss_scale, shared.back};
}

DEVICE Payload payload_of(const Table& table, int v) {
    return {table.codes[v], table.scales[v], table.offsets[v]};
}

DEVICE Noise noise_of(const Table& table, int v, const Shared& shared) {
    return {shared.seed, shared.stream, shared.step, table.parameter[v], table.start[v]};
}

template <int THREADS, int EACH, bool RANDOM>
DEVICE void quantize_many(const Table& table, const Shared& shared) {
    for_groups(table, CTA / THREADS, [&](int v, i64 b) {
        quantize_group<THREADS, EACH, RANDOM>(
            values_of(table, v, shared), feedback_of(table, v, shared), payload_of(table, v), b,
            table.elems[v], shared.form, noise_of(table, v, shared));
    });
}

// Asked for each group: vectors of a list differ in alignment, so that a launch has no one answer.
template <bool RANDOM>
DEVICE bool is_whole(const Table& table, int v, i64 b, int teams, const Shared& shared) {
    bool even = are_even(values_of(table, v, shared), table.residual[v], table.codes[v]);
    even = even && (!RANDOM || has_even_numbers(table.start[v]));
    return b < whole_blocks(table.elems[v], even, teams, shared.form.block);
}

template <int EACH, bool RANDOM>
RARE void quantize_many_others(const Table& table, Shared shared, int teams) {
    for_groups(table, teams, [&](int v, i64 first) {
        if (is_whole<RANDOM>(table, v, first, teams, shared)) return;
        i64 n = table.elems[v];
        for (i64 b = first; b < first + teams && b * shared.form.block < n; b += CTA / WARP)
            quantize_group<WARP, EACH, RANDOM>(
                values_of(table, v, shared), feedback_of(table, v, shared), payload_of(table, v),
                b, n, shared.form, noise_of(table, v, shared));
    });
}

// One of the CTA's groups: its number, and where it begins.
struct Group {
    int number, v;
    i64 b;
};

// The first of the CTA's groups that is whole, from `number` on; beyond all if there is none.
template <bool RANDOM>
DEVICE Group whole_group(
    const Table& table, const Shared& shared, int number, int teams, bool& others) {
    for (; number < table.first_group[table.vectors]; number += int(gridDim.x)) {
        int v = vector_of(table, number);
        i64 b = i64(number - table.first_group[v]) * teams;
        if (is_whole<RANDOM>(table, v, b, teams, shared)) return {number, v, b};
        others = true;
    }
    return {number, 0, 0};
}

// Calls take(asked, v, b, ask_next) for the groups that are whole; see `for_held`. Returns whether
// there are others. These come after all: so they take no registers from those.
template <class H, bool RANDOM, class Take>
DEVICE bool for_whole_groups(const Table& table, const Shared& shared, Take take) {
    bool others = false;
    int groups = table.first_group[table.vectors], own = int(threadIdx.x) / H::TEAM;
    Asked<H> asked;
    Group next;
    auto go_on = [&](int number) {
        next = whole_group<RANDOM>(table, shared, number, H::TEAMS, others);
        asked = {};
        if (next.number < groups)
            ask(asked, values_of(table, next.v, shared), table.residual[next.v],
                (next.b + own) * H::BLOCK);
    };
    int number = int(blockIdx.x);
    if (H::AHEAD) go_on(number);
    while (true) {
        if (!H::AHEAD) go_on(number);
        if (next.number >= groups) return others;
        Group group = next;
        number = group.number + int(gridDim.x);
        take(asked, group.v, group.b, [&] {
            if (H::AHEAD) go_on(number);
        });
    }
}

// Where a vector lies takes registers, too: of blocks of more than two fours a thread has none left
// for the next one's, and would spill up to 44 bytes of them, or share with a CTA less.
template <int BLOCK, int EACH, bool RANDOM>
using ListedBlock = Held<
    BLOCK, EACH, !RANDOM && Held<BLOCK, EACH>::FOURS <= 2, HeldBlock<BLOCK, EACH, RANDOM>::TEAM>;

template <class H, bool RANDOM>
DEVICE void quantize_many_held(const Table& table, const Shared& shared) {
    auto take = [&](const Asked<H>& asked, int v, i64 b, auto ask_next) {
        Noise noise = noise_of(table, v, shared);
        Numbers numbers = numbers_of<RANDOM>(noise, b * H::BLOCK, H::TEAMS * H::BLOCK);
        quantize_asked<H, RANDOM>(
            asked, values_of(table, v, shared), feedback_of(table, v, shared),
            payload_of(table, v), b + int(threadIdx.x) / H::TEAM, shared.form, numbers, ask_next);
    };
    bool others = for_whole_groups<H, RANDOM>(table, shared, take);
    if (others) quantize_many_others<H::EACH, RANDOM>(table, shared, H::TEAMS);
}

// The team's block of signs in the group that begins at block b of vector v.
template <int THREADS>
DEVICE void quantize_signs_of(const Table& table, const Shared& shared, int v, i64 b) {
    int block = shared.form.block;
    b += int(threadIdx.x) / THREADS;
    if (b * block < table.elems[v])
        quantize_signs<THREADS>(
            values_of(table, v, shared), feedback_of(table, v, shared), table.codes[v],
            table.scales[v], b, table.elems[v], block);
}

template <int THREADS>
DEVICE void quantize_many_of_signs(const Table& table, const Shared& shared) {
    for_groups(table, CTA / THREADS, [&](int v, i64 b) {
        quantize_signs_of<THREADS>(table, shared, v, b);
    });
}

RARE void quantize_many_other_signs(const Table& table, Shared shared, int teams) {
    for_groups(table, teams, [&](int v, i64 first) {
        if (is_whole<false>(table, v, first, teams, shared)) return;
        for (i64 b = first; b < first + teams; b += CTA / WARP)
            quantize_signs_of<WARP>(table, shared, v, b);
    });
}

template <class H>
DEVICE void quantize_many_signs_held(const Table& table, const Shared& shared) {
    auto take = [&](const Asked<H>& asked, int v, i64 b, auto ask_next) {
        quantize_signs_asked<H>(
            asked, values_of(table, v, shared), feedback_of(table, v, shared), table.codes[v],
            table.scales[v], b + int(threadIdx.x) / H::TEAM, ask_next);
    };
    bool others = for_whole_groups<H, false>(table, shared, take);
    if (others) quantize_many_other_signs(table, shared, H::TEAMS);
}

// Some of the payloads, as one vector sees them.
struct Payloads {
    const u8* const (&payloads)[MOST];
    i64 codes_at, scales_at, offsets_at;

    METHOD const u8* codes(int r) const { return payloads[r] ? payloads[r] + codes_at : nullptr; }
    METHOD const float* scales(int r) const { return floats(r, scales_at); }
    METHOD const float* offsets(int r) const { return floats(r, offsets_at); }
    METHOD const float* floats(int r, i64 at) const {
        return reinterpret_cast<const float*>(payloads[r] + at);
    }
};

// How the sums of a launch go on from those of the launch before, and whether another one follows.
struct Continuation {
    bool resumes, last;
    float* totals;  // of all vectors, or null: where sums lie until they are rounded
};

// Calls sum_one(payloads, sums, b, n) for each of the team's blocks: block b of n elements.
template <int THREADS, class SumOne>
DEVICE void sum_many(
    const SumTable& table, const u8* const (&payloads)[MOST], const Continuation& continuation,
    int kind, int block, SumOne sum_one) {
    for_groups(table, CTA / THREADS, [&](int v, i64 first) {
        i64 b = first + int(threadIdx.x) / THREADS;
        if (b * block >= table.elems[v]) return;
        void* out = table.out[v];
        float* totals = continuation.totals;
        float* so_far = totals ? totals + table.total[v] : static_cast<float*>(out);
        Sums sums = {continuation.resumes ? so_far : nullptr, out, kind};
        if (!continuation.last) sums.out = so_far, sums.kind = FLOAT32;
        sum_one(
            Payloads{payloads, table.codes[v], table.scales[v], table.offsets[v]}, sums, b,
            table.elems[v]);
    });
}

#define QUANTIZE_MANY_AS(name, ctas, quantize_many, ...)                                        \
    CROWDED(                                                                                    \
        name, CTA, ctas,                                                                        \
        (const __grid_constant__ Table table, int kind, float loss_scale, float back,           \
         int block, int statistic, int top, int bottom, int zero, double clip, u32 seed,        \
         u32 stream, u32 step)) {                                                               \
        Form form = {block, statistic, top, bottom, zero, clip};                                \
        quantize_many<__VA_ARGS__>(table, {kind, loss_scale, back, form, seed, stream, step});  \
    }

#define QUANTIZE_MANY(name, ...) QUANTIZE_MANY_AS(name, 1, quantize_many, __VA_ARGS__)
#define QUANTIZE_MANY_HELD(name, RANDOM, BLOCK, EACH)                                           \
    QUANTIZE_MANY_AS(                                                                           \
        name, (ListedBlock<BLOCK, EACH, RANDOM>::CTAS < 3 ? 2 : 3), quantize_many_held,         \
        ListedBlock<BLOCK, EACH, RANDOM>, RANDOM)

#define QUANTIZE_MANY_OF_SIGNS_AS(name, ctas, quantize_many)                                    \
    CROWDED(                                                                                    \
        name, CTA, ctas,                                                                        \
        (const __grid_constant__ Table table, int kind, float loss_scale, float back,           \
         int block)) {                                                                          \
        quantize_many(table, {kind, loss_scale, back, {block, MAX, 0, 0, 0, 0.0}, 0, 0, 0});    \
    }

#define QUANTIZE_MANY_OF_SIGNS(name, THREADS)                                                   \
    QUANTIZE_MANY_OF_SIGNS_AS(name, 1, quantize_many_of_signs<THREADS>)
#define QUANTIZE_MANY_OF_SIGNS_HELD(name, BLOCK)                                                \
    QUANTIZE_MANY_OF_SIGNS_AS(name, 2, (quantize_many_signs_held<Held<BLOCK, PLANES>>))

#define SUM_MANY(name, THREADS, EACH)                                                           \
    KERNEL(                                                                                     \
        name, CTA,                                                                              \
        (const SumTable table, EACH_OF(const u8* __restrict__, payload), float* totals,         \
         bool alone, bool resumes, bool last, int kind, int block, int zero, bool ranged,       \
         float weight)) {                                                                       \
        const u8* const payloads[MOST] = ALL_OF(payload);                                       \
        Continuation continuation = {resumes, last, totals};                                    \
        auto sum_one = [&](const Payloads& some, Sums sums, i64 b, i64 n) {                     \
            bool even = block % (4 * EACH) == 0 && are_even(sums) && have_even_codes(some);     \
            Integers<Payloads> integers = {some, ranged, zero};                                 \
            sum_block<THREADS, EACH, 1>(integers, sums, alone, b, n, block, weight, even);      \
        };                                                                                      \
        sum_many<THREADS>(table, payloads, continuation, kind, block, sum_one);                 \
    }

#define SUM_MANY_OF_SIGNS(name, THREADS)                                                        \
    KERNEL(                                                                                     \
        name, CTA,                                                                              \
        (const SumTable table, EACH_OF(const u8* __restrict__, payload), float* totals,         \
         bool alone, bool resumes, bool last, int kind, int block, float weight)) {             \
        const u8* const payloads[MOST] = ALL_OF(payload);                                       \
        Continuation continuation = {resumes, last, totals};                                    \
        auto sum_one = [&](const Payloads& some, Sums sums, i64 b, i64 n) {                     \
            bool even = has_even_planes(block) && are_even(sums) && have_even_codes(some);      \
            sum_signs<THREADS>(some, sums, alone, b, n, block, weight, even);                   \
        };                                                                                      \
        sum_many<THREADS>(table, payloads, continuation, kind, block, sum_one);                 \
    }

QUANTIZE_MANY(quantize_many_8_by_warps, WARP, 1, false)
QUANTIZE_MANY(quantize_many_4_by_warps, WARP, 2, false)
QUANTIZE_MANY(quantize_many_2_by_warps, WARP, 4, false)
QUANTIZE_MANY(quantize_many_8_by_ctas, CTA, 1, false)
QUANTIZE_MANY(quantize_many_4_by_ctas, CTA, 2, false)
QUANTIZE_MANY(quantize_many_2_by_ctas, CTA, 4, false)
QUANTIZE_MANY(quantize_many_at_random_8_by_warps, WARP, 1, true)
QUANTIZE_MANY(quantize_many_at_random_4_by_warps, WARP, 2, true)
QUANTIZE_MANY(quantize_many_at_random_2_by_warps, WARP, 4, true)
QUANTIZE_MANY(quantize_many_at_random_8_by_ctas, CTA, 1, true)
QUANTIZE_MANY(quantize_many_at_random_4_by_ctas, CTA, 2, true)
QUANTIZE_MANY(quantize_many_at_random_2_by_ctas, CTA, 4, true)
QUANTIZE_MANY_HELD(quantize_many_8_of_128, false, 128, 1)
QUANTIZE_MANY_HELD(quantize_many_8_of_256, false, 256, 1)
QUANTIZE_MANY_HELD(quantize_many_8_of_512, false, 512, 1)
QUANTIZE_MANY_HELD(quantize_many_8_of_1024, false, 1024, 1)
QUANTIZE_MANY_HELD(quantize_many_4_of_128, false, 128, 2)
QUANTIZE_MANY_HELD(quantize_many_4_of_256, false, 256, 2)
QUANTIZE_MANY_HELD(quantize_many_4_of_512, false, 512, 2)
QUANTIZE_MANY_HELD(quantize_many_4_of_1024, false, 1024, 2)
QUANTIZE_MANY_HELD(quantize_many_2_of_256, false, 256, 4)
QUANTIZE_MANY_HELD(quantize_many_2_of_512, false, 512, 4)
QUANTIZE_MANY_HELD(quantize_many_2_of_1024, false, 1024, 4)
QUANTIZE_MANY_HELD(quantize_many_at_random_8_of_128, true, 128, 1)
QUANTIZE_MANY_HELD(quantize_many_at_random_8_of_256, true, 256, 1)
QUANTIZE_MANY_HELD(quantize_many_at_random_8_of_512, true, 512, 1)
QUANTIZE_MANY_HELD(quantize_many_at_random_8_of_1024, true, 1024, 1)
QUANTIZE_MANY_HELD(quantize_many_at_random_4_of_128, true, 128, 2)
QUANTIZE_MANY_HELD(quantize_many_at_random_4_of_256, true, 256, 2)
QUANTIZE_MANY_HELD(quantize_many_at_random_4_of_512, true, 512, 2)
QUANTIZE_MANY_HELD(quantize_many_at_random_4_of_1024, true, 1024, 2)
QUANTIZE_MANY_HELD(quantize_many_at_random_2_of_256, true, 256, 4)
QUANTIZE_MANY_HELD(quantize_many_at_random_2_of_512, true, 512, 4)
QUANTIZE_MANY_HELD(quantize_many_at_random_2_of_1024, true, 1024, 4)
QUANTIZE_MANY_OF_SIGNS(quantize_many_1_by_warps, WARP)
QUANTIZE_MANY_OF_SIGNS(quantize_many_1_by_ctas, CTA)
QUANTIZE_MANY_OF_SIGNS_HELD(quantize_many_1_of_512, 512)
QUANTIZE_MANY_OF_SIGNS_HELD(quantize_many_1_of_1024, 1024)
SUM_MANY(sum_many_8_by_warps, WARP, 1)
SUM_MANY(sum_many_4_by_warps, WARP, 2)
SUM_MANY(sum_many_2_by_warps, WARP, 4)
SUM_MANY(sum_many_8_by_ctas, CTA, 1)
SUM_MANY(sum_many_4_by_ctas, CTA, 2)
SUM_MANY(sum_many_2_by_ctas, CTA, 4)
SUM_MANY_OF_SIGNS(sum_many_1_by_warps, WARP)
SUM_MANY_OF_SIGNS(sum_many_1_by_ctas, CTA)
