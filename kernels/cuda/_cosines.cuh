// The cosine transform of tiles of whole chunks, in the written order.
//
// A CTA takes 1024 elements, some whole chunks. Sums run in the written order, in float64, a thread
// for each; what can be shared is the matrix. It has no more than 4 N different numbers: each CTA
// makes them for itself, by the written steps, and keeps them in shared memory.
//
// T[j, i] depends on j (2i + 1) mod 4N. With j = o 2^z and o odd, that is 2^z times an odd number
// 2q + 1, where q = (o / 2 + o i) mod (2N / 2^z), rounded down. The numbers of each z lie together,
// by q: so the threads of a warp, whose i or whose o are neighbours, read from different banks.
#pragma once

#include "_team.cuh"
#include "_values.cuh"

constexpr int TILE = 4 * CTA;   // elements that a CTA takes at once
constexpr int EACH = 4;         // of a thread

// ---- the matrix --------------------------------------------------------------------------------

// Where the numbers of a row of the matrix lie: T[j, i] is at base + ((start + i * step) & mask).
struct Row {
    int base, start, step, mask;
};

template <int N>
DEVICE Row row_of(int j) {
    if (j == 0) return {4 * N - 4, 0, 0, 0};  // one number, behind those of all z
    int z = __ffs(u32(j)) - 1, odd = j >> z;
    return {4 * N - (4 * N >> z), odd / 2, odd, (2 * N >> z) - 1};
}

// quarter[m] = cos(pi m / 2N) for m up to N, by halving angles; all threads of the CTA.
template <int N>
DEVICE void halve_angles(double* quarter) {
    if (threadIdx.x == 0) quarter[0] = 1.0, quarter[N] = 0.0;
    double half = sqrt(0.5);
    for (int step = N; step > 1; step /= 2) {
        __syncthreads();
        int low = int(threadIdx.x) * step;
        if (low < N) quarter[low + step / 2] = (quarter[low] + quarter[low + step]) / (2.0 * half);
        half = sqrt((1.0 + half) / 2.0);
    }
    __syncthreads();
}

// `quarter` has room for N + 1 numbers, and is free afterwards.
template <int N>
DEVICE void lay_cosines(double* quarter, double* cosines) {
    halve_angles<N>(quarter);
    double unit = sqrt(2.0 / N);
    for (int z = 0; 1 << z < N; ++z)
        for (int q = threadIdx.x; q < 2 * N >> z; q += CTA) {
            int angle = (2 * q + 1) << z;
            angle = min(angle, 4 * N - angle);
            double cosine = angle <= N ? quarter[angle] : -quarter[2 * N - angle];
            cosines[4 * N - (4 * N >> z) + q] = unit * cosine;
        }
    if (threadIdx.x == 0) cosines[4 * N - 4] = sqrt(1.0 / N);
    __syncthreads();
}

// ---- transforms --------------------------------------------------------------------------------

// The coefficient of a thread's column, 0 to N - 1. Those of one z are neighbours: the highest bit
// of a column gives z, and the bits below it are the odd number without its last bit.
template <int N>
DEVICE int coefficient_of(int column) {
    if (column == 0) return 0;
    int high = 31 - __clz(u32(column));
    return (2 * (column - (1 << high)) + 1) * (N / 2 >> high);
}

// All coefficients of a tile. A thread sums the same one of four chunks.
template <int N>
DEVICE void transform(const double* p, const double* cosines, float* coefficients) {
    int first = int(threadIdx.x) / N * (EACH * N), j = coefficient_of<N>(int(threadIdx.x) % N);
    Row row = row_of<N>(j);
    double sums[EACH] = {0.0, 0.0, 0.0, 0.0};
    for (int i = 0, at = row.start; i < N; ++i, at += row.step) {
        double cosine = cosines[row.base + (at & row.mask)];
        for (int u = 0; u < EACH; ++u) sums[u] += p[first + u * N + i] * cosine;
    }
    for (int u = 0; u < EACH; ++u) coefficients[first + u * N + j] = float(sums[u]);
}

// What a tile's kept coefficients decode to. A thread sums four elements of a chunk, which lie a
// quarter of it apart.
template <int N>
DEVICE void transform_back(
    const float* values, const u8* positions, int kept, const double* cosines, double* decoded) {
    constexpr int APART = N / EACH;
    int first = int(threadIdx.x) / APART * N, i = int(threadIdx.x) % APART;
    double sums[EACH] = {0.0, 0.0, 0.0, 0.0};
    for (int k = 0; k < kept; ++k) {
        Row row = row_of<N>(positions[first + k] & (N - 1));
        double value = values[first + k];
        for (int u = 0; u < EACH; ++u) {
            int at = row.start + row.step * (i + u * APART);
            sums[u] += value * cosines[row.base + (at & row.mask)];
        }
    }
    for (int u = 0; u < EACH; ++u) decoded[first + i + u * APART] = sums[u];
}

// Kept coefficients on the wire, and what they leave behind; see compressa.kernels.dct.

constexpr u32 INFINITE = 0x7F800000u;

struct Form {
    int kept, width, position_bytes;  // width: bits of a position; 0 for a bitmap
};

// Coefficients as they lie on the wire.
struct Sent {
    void* bits;
    int kind;
};

// The bits of the smallest float32 that is infinite as one of them.
DEVICE u32 too_large(Sent sent) {
    return sent.kind == FLOAT32 ? INFINITE : sent.kind == FLOAT16 ? 0x477FF000u : 0x7F7F8000u;
}

// Coefficients of elements up to this are less.
DEVICE float largest_whole(Sent sent) { return sent.kind == FLOAT16 ? 0x1p9f : 0x1p121f; }

// Write one; returns what arrives.
DEVICE float put(Sent sent, i64 i, float value) {
    if (sent.kind == FLOAT32) return static_cast<float*>(sent.bits)[i] = value;
    u32 half = narrow_bits(value, sent.kind);
    static_cast<u16*>(sent.bits)[i] = u16(half);
    return widen(half, sent.kind);
}

DEVICE u32 bits_below(int bit) { return (1u << bit) - 1u; }

// Position k of a stream.
DEVICE u32 streamed_position(const u8* packed, int k, Form form) {
    int first = k * form.width, byte = first / 8;
    u32 word = packed[byte];
    for (int more = 1; more < 3 && byte + more < form.position_bytes; ++more)
        word |= u32(packed[byte + more]) << 8 * more;
    return word >> first % 8 & bits_below(form.width);
}

// A byte of a stream of positions.
template <class Position>
DEVICE u32 streamed_byte(const Position* positions, int byte, Form form) {
    int first = 8 * byte / form.width;
    u32 bits = 0;
    for (int k = first; k < form.kept && k * form.width < 8 * byte + 8; ++k)
        bits |= u32(positions[k]) << (k - first) * form.width;
    return bits >> (8 * byte - first * form.width) & 255u;
}

// What was not sent: the error; if there is none to speak of, the element if it can be sent later,
// or what was there.
DEVICE float left_behind(float p, float decoded, float back, float before, Sent sent) {
    float error = (p - decoded) * back, whole = p * back;
    return is_finite(error) ? error : fabsf(whole) <= largest_whole(sent) ? whole : before;
}
