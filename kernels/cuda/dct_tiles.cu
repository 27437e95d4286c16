// Cosine transforms of a matrix's tiles along both dimensions; see compressa.kernels.dct.
//
// A CTA takes a tile of N x N elements. Sums run in the written order, in float64, one thread each.

#include "_cosines.cuh"
#include "_scan.cuh"

// What a CTA has of a tile.
template <int N>
struct Room {
    static constexpr int ELEMS = N * N, OWN = ELEMS / CTA;
    double cosines[4 * N];
    double quarter[N + 1];
    float tile[ELEMS];   // p, then coefficients; or rows of coefficients transformed back
    float other[ELEMS];  // rows transformed, then the kept values in the order of their positions
    u16 positions[ELEMS];   // of the kept values
    u32 taken[ELEMS / WARP];  // a bit for each position
    u16 starts[N + 1];   // how many kept values lie before a row
};

// One of a matrix's tiles: where it begins, and in which column.
struct Tile {
    i64 n, columns, low, column;
};

template <int N>
DEVICE Tile tile_of(i64 n, i64 columns, i64 number) {
    i64 across = (columns + N - 1) / N;
    return {n, columns, number / across * N * columns, number % across * N};
}

// Where element e of a tile lies; -1 beyond the matrix.
template <int N>
DEVICE i64 index_of(const Tile& tile, int e) {
    i64 column = tile.column + e % N, index = tile.low + e / N * tile.columns + column;
    return column < tile.columns && index < tile.n ? index : -1;
}

// T[j, i].
template <int N>
DEVICE double cosine(const double* cosines, int j, int i) {
    Row row = row_of<N>(j);
    return cosines[row.base + ((row.start + i * row.step) & row.mask)];
}

// ---- forth -------------------------------------------------------------------------------------

// From p in `tile` to its coefficients.
template <int N>
DEVICE void transform(Room<N>& room) {
    for (int e = threadIdx.x; e < N * N; e += CTA) {
        double sum = 0.0;
        for (int i = 0; i < N; ++i)
            sum += double(room.tile[e / N * N + i]) * cosine<N>(room.cosines, e % N, i);
        room.other[e] = float(sum);
    }
    __syncthreads();
    for (int e = threadIdx.x; e < N * N; e += CTA) {
        double sum = 0.0;
        for (int i = 0; i < N; ++i)
            sum += cosine<N>(room.cosines, e / N, i) * double(room.other[i * N + e % N]);
        room.tile[e] = float(sum);
    }
    __syncthreads();
}

// The largest number that `kept` keys reach; each thread has some of the keys.
template <int N>
DEVICE u32 kth_largest(const u32 (&keys)[Room<N>::OWN], int kept) {
    u32 found = 0;
    for (int bit = 30; bit >= 0; --bit) {
        u32 more = found | 1u << bit, own = 0;
        for (int u = 0; u < Room<N>::OWN; ++u) own += keys[u] >= more;
        if (int(cta_scan(own).total) >= kept) found = more;
    }
    return found;
}

// Note the largest coefficients and their positions; if one is too large, NaNs in the first ones.
template <int N>
DEVICE void choose(int kept, u32 limit, Room<N>& room) {
    constexpr int OWN = Room<N>::OWN;
    int first = OWN * int(threadIdx.x);
    float coefficients[OWN];
    u32 keys[OWN], largest = 0;
    for (int u = 0; u < OWN; ++u) {
        coefficients[u] = room.tile[first + u];
        keys[u] = magnitude_bits(coefficients[u]);
        largest = max(largest, keys[u]);
    }
    if (team_max<CTA>(largest) >= limit)
        for (int u = 0; u < OWN; ++u) coefficients[u] = quiet_nan(), keys[u] = 0;
    for (int word = threadIdx.x; word < N * N / WARP; word += CTA) room.taken[word] = 0;
    u32 least = kth_largest<N>(keys, kept), above = 0, equal = 0;
    for (int u = 0; u < OWN; ++u) above += keys[u] > least, equal += keys[u] == least;
    Scanned<u32> larger = cta_scan(above), alike = cta_scan(equal);
    u32 spare = u32(kept) - larger.total, before = alike.before;
    u32 at = larger.before + min(before, spare);
    for (int u = 0; u < OWN; ++u) {
        bool reaches = keys[u] == least && before < spare;
        before += keys[u] == least;
        if (keys[u] <= least && !reaches) continue;
        int position = first + u;
        room.other[at] = coefficients[u], room.positions[at] = u16(position), ++at;
        atomicOr(&room.taken[position / WARP], 1u << position % WARP);
    }
    __syncthreads();
}

// What is noted becomes what arrives.
template <int N>
DEVICE void send(i64 tile, Form form, Room<N>& room, Sent values, u8* positions) {
    for (int k = threadIdx.x; k < form.kept; k += CTA)
        room.other[k] = put(values, tile * form.kept + k, room.other[k]);
    for (int byte = threadIdx.x; byte < form.position_bytes; byte += CTA) {
        u32 bits = form.width ? streamed_byte(room.positions, byte, form)
                              : room.taken[byte / 4] >> 8 * (byte % 4) & 255u;
        positions[tile * form.position_bytes + byte] = u8(bits);
    }
}

// ---- back --------------------------------------------------------------------------------------

// How many of the positions lie before a number.
DEVICE int positions_before(const u16* positions, int kept, int number) {
    int low = 0, high = kept;
    while (low < high) {
        int middle = (low + high) / 2;
        if (positions[middle] < number) low = middle + 1;
        else high = middle;
    }
    return low;
}

// Calls deliver(e, decoded) for each element of a tile.
template <int N, class Deliver>
DEVICE void transform_back(int kept, Room<N>& room, Deliver deliver) {
    for (int row = threadIdx.x; row <= N; row += CTA)
        room.starts[row] = u16(positions_before(room.positions, kept, row * N));
    __syncthreads();
    for (int e = threadIdx.x; e < N * N; e += CTA) {
        double sum = 0.0;
        for (int k = room.starts[e / N]; k < room.starts[e / N + 1]; ++k)
            sum += double(room.other[k]) * cosine<N>(room.cosines, room.positions[k] % N, e % N);
        room.tile[e] = float(sum);
    }
    __syncthreads();
    for (int e = threadIdx.x; e < N * N; e += CTA) {
        double sum = 0.0;
        for (int row = 0; row < N; ++row)
            if (room.starts[row] < room.starts[row + 1])
                sum += cosine<N>(room.cosines, row, e / N) * double(room.tile[row * N + e % N]);
        deliver(e, float(sum));
    }
    __syncthreads();
}

template <int N>
DEVICE void keep(
    Values x, Feedback feedback, Sent values, u8* positions, i64 n, i64 columns, i64 tiles,
    Form form, Room<N>& room) {
    lay_cosines<N>(room.quarter, room.cosines);
    for (i64 number = blockIdx.x; number < tiles; number += gridDim.x) {
        Tile tile = tile_of<N>(n, columns, number);
        u32 broken = 0;
        for (int e = threadIdx.x; e < N * N; e += CTA) {
            i64 i = index_of<N>(tile, e);
            float p = i < 0 ? 0.0f : effective(x, feedback, i);
            broken |= !is_finite(p);
            room.tile[e] = p;
        }
        broken = team_max<CTA>(broken);
        transform<N>(room);
        choose<N>(form.kept, too_large(values), room);
        send<N>(number, form, room, values, positions);
        if (!feedback.residual || broken) continue;
        transform_back<N>(form.kept, room, [&](int e, float decoded) {
            i64 i = index_of<N>(tile, e);
            if (i < 0) return;
            float p = effective(x, feedback, i), before = feedback.residual[i];
            feedback.residual[i] = left_behind(p, decoded, feedback.back, before, values);
        });
    }
}

// Positions of a tile, from the wire.
template <int N>
DEVICE void unpack(const u8* packed, Form form, Room<N>& room) {
    if (form.width) {
        for (int k = threadIdx.x; k < form.kept; k += CTA)
            room.positions[k] = u16(streamed_position(packed, k, form));
        return;
    }
    constexpr int OWN = Room<N>::OWN;
    int first = OWN * int(threadIdx.x);
    u32 own = 0;
    for (int e = first; e < first + OWN; ++e) own += packed[e / 8] >> e % 8 & 1;
    u32 at = cta_scan(own).before;
    for (int e = first; e < first + OWN; ++e)
        if (packed[e / 8] >> e % 8 & 1 && at < u32(form.kept)) room.positions[at++] = u16(e);
}

template <int N>
DEVICE void add(
    Values values, const u8* positions, float* out, i64 n, i64 columns, i64 tiles, Form form,
    float weight, bool added, Room<N>& room) {
    lay_cosines<N>(room.quarter, room.cosines);
    for (i64 number = blockIdx.x; number < tiles; number += gridDim.x) {
        Tile tile = tile_of<N>(n, columns, number);
        unpack<N>(positions + number * form.position_bytes, form, room);
        for (int k = threadIdx.x; k < form.kept; k += CTA)
            room.other[k] = load(values, number * form.kept + k);
        __syncthreads();
        transform_back<N>(form.kept, room, [&](int e, float decoded) {
            i64 i = index_of<N>(tile, e);
            if (i < 0) return;
            float product = weight * decoded;
            out[i] = added ? out[i] + product : product;
        });
    }
}

#define KEEP(N)                                                                                   \
    KERNEL(                                                                                       \
        keep_##N, CTA,                                                                            \
        (const void* x, int kind, float* residual, float loss_scale, float back, void* values,    \
         int sent, u8* positions, i64 n, i64 columns, i64 tiles, int kept, int width,             \
         int position_bytes)) {                                                                   \
        __shared__ Room<N> room;                                                                  \
        Form form = {kept, width, position_bytes};                                                \
        Feedback feedback = {residual, loss_scale, back};                                         \
        keep<N>({x, kind}, feedback, {values, sent}, positions, n, columns, tiles, form, room);   \
    }

#define ADD(N)                                                                                    \
    KERNEL(                                                                                       \
        add_##N, CTA,                                                                             \
        (const void* values, int sent, const u8* positions, float* out, i64 n, i64 columns,       \
         i64 tiles, int kept, int width, int position_bytes, float weight, bool added)) {         \
        __shared__ Room<N> room;                                                                  \
        Form form = {kept, width, position_bytes};                                                \
        add<N>({values, sent}, positions, out, n, columns, tiles, form, weight, added, room);     \
    }

KEEP(16)
KEEP(32)
KEEP(64)
ADD(16)
ADD(32)
ADD(64)
