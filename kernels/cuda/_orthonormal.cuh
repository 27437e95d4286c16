// Gram-Schmidt on the products of the rows of a factor; see compressa.kernels.lowrank.
//
// What is found out for row j and the rows up to it begins at index j (j + 1) / 2.
#pragma once

#include "_team.cuh"
#include "_values.cuh"

constexpr int BLOCK = 2048;  // elements of a row that are summed up together
constexpr double DEPENDENT = 0x1p-18;

DEVICE i64 first_of(i64 j) { return j * (j + 1) / 2; }

DEVICE i64 block_count(i64 n) { return (n + BLOCK - 1) / BLOCK; }

// What is found out on the way, in the order of the memory that it takes.
struct Room {
    double *shares, *products, *of, *parts;
};

DEVICE Room room_in(double* memory, int approx_rank) {
    double* products = memory + approx_rank;
    i64 pairs = first_of(approx_rank);
    return {memory, products, products + pairs, products + 2 * pairs};
}

// Half a warp takes two rows of a block; those that follow share its lines in the cache.
DEVICE void multiply_rows(const float* p, double* parts, i64 n, int approx_rank) {
    constexpr int STEPS = 8;
    i64 pairs = first_of(approx_rank), units = pairs * block_count(n);
    int lane = int(threadIdx.x) % LANES;
    for (i64 even = 2 * team_number<WARP>(); even < units; even += 2 * team_count<WARP>()) {
        i64 unit = even + int(threadIdx.x) % WARP / LANES, low = unit / pairs * BLOCK;
        int size = unit < units ? int(min(i64(BLOCK), n - low)) : 0;
        i64 j = 0, k = unit % pairs;
        while (k > j) k -= ++j;
        const float *a = p + j * n + low, *b = p + k * n + low;
        double sum = 0.0;
        for (int first = lane; first < size; first += STEPS * LANES) {
            float left[STEPS], right[STEPS];
            for (int s = 0; s < STEPS; ++s) {
                int i = first + s * LANES;
                left[s] = i < size ? a[i] : 0.0f;
                right[s] = i < size ? b[i] : 0.0f;
            }
            for (int s = 0; s < STEPS; ++s) sum += double(left[s]) * double(right[s]);
        }
        for (int half = LANES / 2; half; half /= 2) sum += __shfl_xor_sync(WHOLE_WARP, sum, half);
        if (lane == 0 && unit < units) parts[unit] = sum;
    }
}

DEVICE void add_blocks(const double* parts, double* products, i64 pairs, i64 blocks) {
    constexpr int AHEAD = 8;
    for (i64 pair = threadIdx.x; pair < pairs; pair += CTA) {
        double sum = 0.0;
        for (i64 low = 0; low < blocks; low += AHEAD) {
            double some[AHEAD];
            for (int u = 0; u < AHEAD; ++u)
                some[u] = low + u < blocks ? parts[(low + u) * pairs + pair] : 0.0;
            for (int u = 0; u < AHEAD; ++u) sum += some[u];
        }
        products[pair] = sum;
    }
}

// What row j is made of, element i: with what is left of it, squared, and whether that will do.
DEVICE double made_of(const Room& room, int j, int i, double left, bool alive) {
    if (!(left - left == 0.0)) return left - left;  // NaN
    if (!alive) return 0.0;
    if (i == j) return 1.0 / sqrt(left);
    double taken = 0.0;
    for (int k = i; k < j; ++k) taken += room.shares[k] * room.of[first_of(k) + i];
    return -taken / sqrt(left);
}

// One CTA. Few rows are combined in shared memory, since every number waits for others.
DEVICE void find_combinations(const Room& in, i64 blocks, int approx_rank, bool again) {
    constexpr int FEW = 16, PAIRS = FEW * (FEW + 1) / 2;
    __shared__ double near[FEW + 2 * PAIRS];
    Room room = approx_rank <= FEW ? room_in(near, approx_rank) : in;
    add_blocks(in.parts, room.products, first_of(approx_rank), blocks);
    __syncthreads();
    for (int j = 0; j < approx_rank; ++j) {
        const double* products = room.products + first_of(j);
        for (int k = threadIdx.x; k < j; k += CTA) {
            double share = 0.0;
            for (int i = 0; i <= k; ++i) share += room.of[first_of(k) + i] * products[i];
            room.shares[k] = share;
        }
        __syncthreads();
        double left = products[j];
        for (int k = 0; k < j; ++k) left -= room.shares[k] * room.shares[k];
        bool alive = left > (again ? 0.25 : DEPENDENT * DEPENDENT * products[j]);
        for (int i = threadIdx.x; i <= j; i += CTA)
            in.of[first_of(j) + i] = room.of[first_of(j) + i] = made_of(room, j, i, left, alive);
        __syncthreads();
    }
}

// The last row first: those before it are still what they were.
DEVICE void combine_rows(float* p, const double* of, i64 n, int approx_rank) {
    for (i64 i = team_number<1>(); i < n; i += team_count<1>())
        for (int j = approx_rank - 1; j >= 0; --j) {
            const double* own = of + first_of(j);
            double sum = 0.0;
            for (int k = 0; k <= j; ++k) sum += own[k] * double(p[k * n + i]);
            p[j * n + i] = own[j] == own[j] ? float(sum) : quiet_nan();
        }
}
