// Packs: the neighbouring columns of a matrix that a thread takes at a time, and sums of products.
#pragma once

#include "_team.cuh"
#include "_values.cuh"

template <int WIDTH>
struct alignas(4 * WIDTH) Pack {
    float of[WIDTH];
};

// Of the wide matrix; and which vectors of a factor are multiplied.
struct Shape {
    i64 rows, columns;
    int approx_rank, first, last;
};

// M = x + loss_scale * residual.
struct Sum {
    float* x;
    const float* residual;  // or null
    float loss_scale;
};

template <int VECTORS>
DEVICE i64 group_count(const Shape& shape) {
    return (shape.last - shape.first + VECTORS - 1) / VECTORS;
}

// Whether four columns can be read at once from every row of matrices that begin at the addresses.
template <class... Addresses>
DEVICE bool are_wide(i64 columns, Addresses... addresses) {
    return columns % 4 == 0 && (is_aligned(addresses, 16) && ...);
}

template <int WIDTH>
DEVICE Pack<WIDTH> load_pack(const float* at, bool there) {
    Pack<WIDTH> none = {};
    return there ? *reinterpret_cast<const Pack<WIDTH>*>(at) : none;
}

template <int WIDTH>
DEVICE void store_pack(float* at, const Pack<WIDTH>& pack, bool there) {
    if (there) *reinterpret_cast<Pack<WIDTH>*>(at) = pack;
}

template <int WIDTH>
DEVICE void add_product(Pack<WIDTH>& sum, const Pack<WIDTH>& a, const Pack<WIDTH>& b) {
    for (int u = 0; u < WIDTH; ++u) sum.of[u] += a.of[u] * b.of[u];
}

template <int WIDTH>
DEVICE Pack<WIDTH> scaled(float factor, const Pack<WIDTH>& line) {
    Pack<WIDTH> product;
    for (int u = 0; u < WIDTH; ++u) product.of[u] = factor * line.of[u];
    return product;
}

template <int WIDTH>
DEVICE void add_scaled(Pack<WIDTH>& sum, float factor, const Pack<WIDTH>& line) {
    for (int u = 0; u < WIDTH; ++u) sum.of[u] += factor * line.of[u];
}

// Elements of M from a position on, one pack at each step, of which `some` are there; zeros for the
// others. What there is of M takes the place of x.
template <int WIDTH, int STEPS>
DEVICE void take(const Sum& m, i64 at, i64 stride, int some, Pack<WIDTH> (&elements)[STEPS]) {
    for (int s = 0; s < STEPS; ++s)
        elements[s] = load_pack<WIDTH>(m.x + at + s * stride, s < some);
    if (!m.residual) return;
    Pack<WIDTH> left[STEPS];
    for (int s = 0; s < STEPS; ++s)
        left[s] = load_pack<WIDTH>(m.residual + at + s * stride, s < some);
    for (int s = 0; s < STEPS; ++s) {
        add_scaled(elements[s], m.loss_scale, left[s]);
        store_pack(m.x + at + s * stride, elements[s], s < some);
    }
}

// The sum of lanes that are spread over so many neighbouring threads: lane j takes in lane
// j + half, for half = 8, 4, 2, 1.
template <int SHARE, int WIDTH>
DEVICE float halved(Pack<WIDTH> lanes) {
    for (int step = SHARE / 2; step; step /= 2)
        for (int u = 0; u < WIDTH; ++u)
            lanes.of[u] += __shfl_xor_sync(WHOLE_WARP, lanes.of[u], step);
    for (int half = WIDTH / 2; half; half /= 2)
        for (int u = 0; u < half; ++u) lanes.of[u] += lanes.of[u + half];
    return lanes.of[0];
}
