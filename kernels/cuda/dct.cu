// Cosine transforms of a vector's chunks, and the largest coefficients; see compressa.kernels.dct.

#include "_answer.cuh"
#include "_cosines.cuh"
#include "_team.cuh"

// ---- the largest coefficients ------------------------------------------------------------------

// A bit for each of a chunk's N coefficients; all lanes of a warp have all words.
template <int N>
struct Set {
    static constexpr int WORDS = (N + WARP - 1) / WARP;
    u32 words[WORDS];
};

DEVICE int warp_lane() { return int(threadIdx.x) % WARP; }

// Element `warp_lane() + 32 * word` is in the set where said(word).
template <int N, class Said>
DEVICE Set<N> set_of(Said said) {
    Set<N> set;
    for (int word = 0; word < Set<N>::WORDS; ++word)
        set.words[word] = __ballot_sync(WHOLE_WARP, warp_lane() < N && said(word));
    return set;
}

template <int N>
DEVICE int size_of(const Set<N>& set) {
    int size = 0;
    for (int word = 0; word < Set<N>::WORDS; ++word) size += __popc(set.words[word]);
    return size;
}

// The `kept` largest keys; of equal ones the first.
template <int N>
DEVICE Set<N> largest(const u32 (&keys)[Set<N>::WORDS], int kept) {
    u32 least = 0;
    int reaching = N;
    for (int bit = 30; bit >= 0 && reaching != kept; --bit) {
        u32 more = least | 1u << bit;
        int count = size_of(set_of<N>([&](int word) { return keys[word] >= more; }));
        if (count >= kept) least = more, reaching = count;
    }
    Set<N> above = set_of<N>([&](int word) { return keys[word] > least; });
    Set<N> equal = set_of<N>([&](int word) { return keys[word] == least; });
    int spare = kept - size_of(above), before = 0;
    u32 earlier = bits_below(warp_lane());
    Set<N> taken;
    for (int word = 0; word < Set<N>::WORDS; ++word) {
        int rank = before + __popc(equal.words[word] & earlier);
        bool own = equal.words[word] >> warp_lane() & 1u;
        taken.words[word] = above.words[word] | __ballot_sync(WHOLE_WARP, own && rank < spare);
        before += __popc(equal.words[word]);
    }
    return taken;
}

// Move what is in a set together, and note the positions; in place, by one warp.
template <int N>
DEVICE void gather(
    const Set<N>& taken, const float (&coefficients)[Set<N>::WORDS], float* values, u8* positions) {
    int before = 0;
    __syncwarp();
    for (int word = 0; word < Set<N>::WORDS; ++word) {
        int at = before + __popc(taken.words[word] & bits_below(warp_lane()));
        if (taken.words[word] >> warp_lane() & 1u) {
            values[at] = coefficients[word];
            positions[at] = u8(warp_lane() + word * WARP);
        }
        before += __popc(taken.words[word]);
    }
    __syncwarp();
}

// Choose among a chunk's coefficients; return the chosen ones. If one is too large, all are NaN.
template <int N>
DEVICE Set<N> choose(int kept, u32 limit, float* values, u8* positions) {
    float coefficients[Set<N>::WORDS];
    u32 keys[Set<N>::WORDS];
    bool overflow = false;
    for (int word = 0; word < Set<N>::WORDS; ++word) {
        int j = warp_lane() + word * WARP;
        coefficients[word] = j < N ? values[j] : 0.0f;
        keys[word] = magnitude_bits(coefficients[word]);
        overflow = overflow || keys[word] >= limit;
    }
    overflow = __any_sync(WHOLE_WARP, overflow);
    if (overflow)
        for (int word = 0; word < Set<N>::WORDS; ++word) {
            coefficients[word] = quiet_nan();
            keys[word] = 0;  // all are alike, and the first are taken
        }
    Set<N> taken = largest<N>(keys, kept);
    gather<N>(taken, coefficients, values, positions);
    return taken;
}

// Byte `warp_lane()` of a chunk's packed positions.
template <int N>
DEVICE u32 packed_byte(const Set<N>& taken, const u8* positions, Form form) {
    int byte = warp_lane();
    if (!form.width) {
        u32 found = 0;
        for (int word = 0; word < Set<N>::WORDS; ++word)
            found = word == byte / 4 ? taken.words[word] : found;
        return found >> 8 * (byte % 4) & 255u;
    }
    return streamed_byte(positions, byte, form);
}

// Values and positions of one chunk, by one warp; what is listed becomes what arrives.
template <int N>
DEVICE void send(
    i64 chunk, const Set<N>& taken, float* listed, const u8* chosen, Form form, Sent values,
    u8* positions) {
    for (int k = warp_lane(); k < form.kept; k += WARP)
        listed[k] = put(values, chunk * form.kept + k, listed[k]);
    if (warp_lane() < form.position_bytes)
        positions[chunk * form.position_bytes + warp_lane()] =
            u8(packed_byte<N>(taken, chosen, form));
}

// What a CTA has of a tile.
template <int N>
struct Room {
    double cosines[4 * N];
    double wide[TILE];  // p, then what is decoded
    float values[TILE];  // coefficients; the kept ones of each chunk at its beginning
    u8 positions[TILE];
    u32 broken[TILE / N];  // whether some p of a chunk is not finite
};

// What a thread reads of a tile: p, and the residual if there is one.
template <bool EVEN>
DEVICE void load_own(
    Values x, Feedback feedback, i64 low, int count, float (&p)[EACH], float (&left)[EACH]) {
    load4<EVEN>(x, low, count, p);
    if (!feedback.residual) return;
    load4<EVEN>(feedback.residual, low, count, left);
    for (int u = 0; u < EACH; ++u) p[u] = p[u] + feedback.loss_scale * left[u];
}

template <int N>
DEVICE void keep(
    Values x, Feedback feedback, Sent values, u8* positions, i64 n, Form form, Room<N>& room) {
    constexpr int CHUNKS = TILE / N;
    lay_cosines<N>(room.wide, room.cosines);
    i64 chunks = (n + N - 1) / N, tiles = (chunks + CHUNKS - 1) / CHUNKS;
    int own = EACH * int(threadIdx.x);
    bool even = is_even(x) && is_aligned(feedback.residual, 16);
    for (i64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        i64 low = tile * TILE + own;
        int count = int(max(i64(0), min(i64(EACH), n - low)));
        float p[EACH], left[EACH] = {0.0f, 0.0f, 0.0f, 0.0f};
        if (even) load_own<true>(x, feedback, low, count, p, left);
        else load_own<false>(x, feedback, low, count, p, left);
        if (threadIdx.x < CHUNKS) room.broken[threadIdx.x] = 0;
        for (int u = 0; u < EACH; ++u) room.wide[own + u] = u < count ? double(p[u]) : 0.0;
        __syncthreads();
        for (int u = 0; u < EACH; ++u)
            if (u < count && !is_finite(p[u])) room.broken[own / N] = 1;
        transform<N>(room.wide, room.cosines, room.values);
        __syncthreads();
        for (int c = int(threadIdx.x) / WARP; c < CHUNKS; c += CTA / WARP) {
            if (tile * CHUNKS + c >= chunks) break;  // all of a warp
            float* listed = room.values + c * N;
            u8* chosen = room.positions + c * N;
            Set<N> taken = choose<N>(form.kept, too_large(values), listed, chosen);
            send<N>(tile * CHUNKS + c, taken, listed, chosen, form, values, positions);
        }
        __syncthreads();
        if (!feedback.residual) continue;
        transform_back<N>(room.values, room.positions, form.kept, room.cosines, room.wide);
        __syncthreads();
        for (int u = 0; u < EACH; ++u) {
            float decoded = float(room.wide[own + u]);
            if (!room.broken[own / N])
                left[u] = left_behind(p[u], decoded, feedback.back, left[u], values);
        }
        if (even) store4<true>(feedback.residual, low, count, left);
        else store4<false>(feedback.residual, low, count, left);
        __syncthreads();
    }
}

// ---- back --------------------------------------------------------------------------------------

// Positions of one chunk, by one warp.
template <int N>
DEVICE void unpack(const u8* packed, Form form, u8* positions) {
    if (form.width) {
        for (int k = warp_lane(); k < form.kept; k += WARP)
            positions[k] = u8(streamed_position(packed, k, form));
        return;
    }
    int before = 0;
    for (int word = 0; word < Set<N>::WORDS; ++word) {
        int j = warp_lane() + word * WARP;
        bool there = j < N && (packed[j / 8] >> j % 8 & 1);
        u32 all = __ballot_sync(WHOLE_WARP, there);
        int at = before + __popc(all & bits_below(warp_lane()));
        if (there && at < form.kept) positions[at] = u8(j);
        before += __popc(all);
    }
}

template <int N>
DEVICE void add(
    Values values, const u8* positions, float* out, i64 n, Form form, float weight, bool added,
    Room<N>& room) {
    constexpr int CHUNKS = TILE / N;
    lay_cosines<N>(room.wide, room.cosines);
    i64 chunks = (n + N - 1) / N, tiles = (chunks + CHUNKS - 1) / CHUNKS;
    int own = EACH * int(threadIdx.x);
    bool even = is_aligned(out, 16);
    for (i64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        for (int c = int(threadIdx.x) / WARP; c < CHUNKS; c += CTA / WARP) {
            i64 chunk = tile * CHUNKS + c;
            if (chunk >= chunks) break;  // all of a warp
            unpack<N>(positions + chunk * form.position_bytes, form, room.positions + c * N);
            for (int k = warp_lane(); k < form.kept; k += WARP)
                room.values[c * N + k] = load(values, chunk * form.kept + k);
        }
        __syncthreads();
        transform_back<N>(room.values, room.positions, form.kept, room.cosines, room.wide);
        __syncthreads();
        i64 low = tile * TILE + own;
        int count = int(max(i64(0), min(i64(EACH), n - low)));
        auto decode = [&](float (&decoded)[EACH]) {
            for (int u = 0; u < EACH; ++u) decoded[u] = float(room.wide[own + u]);
        };
        if (even) combine4<true>(out, low, count, weight, added, decode);
        else combine4<false>(out, low, count, weight, added, decode);
    }
}

#define KEEP(N)                                                                                   \
    KERNEL(                                                                                       \
        keep_##N, CTA,                                                                            \
        (const void* x, int kind, float* residual, float loss_scale, float back, void* values,    \
         int sent, u8* positions, i64 n, int kept, int width, int position_bytes)) {              \
        __shared__ Room<N> room;                                                                  \
        Form form = {kept, width, position_bytes};                                                \
        Feedback feedback = {residual, loss_scale, back};                                         \
        keep<N>({x, kind}, feedback, {values, sent}, positions, n, form, room);                   \
    }

#define ADD(N)                                                                                   \
    KERNEL(                                                                                      \
        add_##N, CTA,                                                                            \
        (const void* values, int sent, const u8* positions, float* out, i64 n, int kept,         \
         int width, int position_bytes, float weight, bool added)) {                             \
        __shared__ Room<N> room;                                                                 \
        Form form = {kept, width, position_bytes};                                               \
        add<N>({values, sent}, positions, out, n, form, weight, added, room);                    \
    }

KEEP(16)
KEEP(32)
KEEP(64)
ADD(16)
ADD(32)
ADD(64)

// ---- positions ---------------------------------------------------------------------------------

// Different positions in order, and nothing in unused bits.
DEVICE bool is_stream(const u8* packed, Form form) {
    int before = -1;
    bool rising = true;
    for (int k = 0; k < form.kept; ++k) {
        int position = int(streamed_position(packed, k, form));
        rising = rising && position > before;
        before = position;
    }
    int used = (form.kept * form.width - 1) % 8 + 1;
    return rising && packed[form.position_bytes - 1] >> used == 0;
}

DEVICE bool is_bitmap(const u8* packed, Form form) {
    int found = 0;
    for (int byte = 0; byte < form.position_bytes; ++byte) found += __popc(packed[byte]);
    return found == form.kept;
}

// A thread for each chunk; the answer is 1 if any is wrong.
KERNEL(
    find_wrong_positions, CTA,
    (const u8* positions, i64 chunks, int kept, int width, int position_bytes, u64* answer)) {
    Form form = {kept, width, position_bytes};
    bool wrong = false;
    i64 first = i64(blockIdx.x) * CTA + threadIdx.x;
    for (i64 chunk = first; chunk < chunks; chunk += i64(gridDim.x) * CTA) {
        const u8* packed = positions + chunk * position_bytes;
        wrong = wrong || !(width ? is_stream(packed, form) : is_bitmap(packed, form));
    }
    answer_any(answer, wrong);
}
