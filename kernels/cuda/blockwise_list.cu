// Block-wise quantisation of many vectors by one launch; see compressa.kernels.blockwise_list.
//
// A CTA takes a group of blocks, one to a team, all of one vector: so it does what the kernels of
// blockwise.cu do. The table that says where the vectors lie is a parameter of the kernel: it needs
// no copy to the GPU, and all threads of a CTA read the same entry of it.

#include "_blockwise.cuh"

constexpr int MOST = 64;

struct Table {
    const void* x[MOST];
    float* residual[MOST];  // or null
    u8* codes[MOST];
    float* scales[MOST];
    float* offsets[MOST];  // or null
    i64 start[MOST];
    int elems[MOST];
    u32 parameter[MOST];
    int first_group[MOST + 1];  // of all groups; a vector without elements has none
    int vectors;
};

// The vector that a group belongs to.
DEVICE int vector_of(const Table& table, int group) {
    int low = 0, high = table.vectors;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (table.first_group[middle] <= group) low = middle;
        else high = middle;
    }
    return low;
}

template <int THREADS, int EACH, bool RANDOM>
DEVICE void quantize_list(
    const Table& table, int kind, float scale, float back, const Form& form, u32 seed, u32 stream,
    u32 step) {
    int groups = table.first_group[table.vectors];
    for (int group = int(blockIdx.x); group < groups; group += int(gridDim.x)) {
        int v = vector_of(table, group);
        i64 block = i64(group - table.first_group[v]) * (CTA / THREADS);
        quantize_group<THREADS, EACH, RANDOM>(
            {table.x[v], kind}, {table.residual[v], scale, back},
            {table.codes[v], table.scales[v], table.offsets[v]}, block, table.elems[v], form,
            {seed, stream, step, table.parameter[v], table.start[v]});
    }
}

#define QUANTIZE_LIST(name, THREADS, EACH, RANDOM)                                              \
    KERNEL(                                                                                     \
        name, CTA,                                                                              \
        (const Table table, int kind, float scale, float back, int block, int statistic,        \
         int top, int bottom, int zero, double clip, u32 seed, u32 stream, u32 step)) {         \
        Form form = {block, statistic, top, bottom, zero, clip};                                \
        quantize_list<THREADS, EACH, RANDOM>(table, kind, scale, back, form, seed, stream, step); \
    }

QUANTIZE_LIST(quantize_list_8_by_warps, WARP, 1, false)
QUANTIZE_LIST(quantize_list_4_by_warps, WARP, 2, false)
QUANTIZE_LIST(quantize_list_2_by_warps, WARP, 4, false)
QUANTIZE_LIST(quantize_list_8_by_ctas, CTA, 1, false)
QUANTIZE_LIST(quantize_list_4_by_ctas, CTA, 2, false)
QUANTIZE_LIST(quantize_list_2_by_ctas, CTA, 4, false)
QUANTIZE_LIST(quantize_list_8_at_random_by_warps, WARP, 1, true)
QUANTIZE_LIST(quantize_list_4_at_random_by_warps, WARP, 2, true)
QUANTIZE_LIST(quantize_list_2_at_random_by_warps, WARP, 4, true)
QUANTIZE_LIST(quantize_list_8_at_random_by_ctas, CTA, 1, true)
QUANTIZE_LIST(quantize_list_4_at_random_by_ctas, CTA, 2, true)
QUANTIZE_LIST(quantize_list_2_at_random_by_ctas, CTA, 4, true)
