// Natural dithering; see compressa.kernels.natural_dithering for the arithmetic and the layout.
//
// A team takes a block and reads it into shared memory, where its norm is found; a block that does
// not fit goes through in pieces, and is read once more. Codes go to shared memory as well, a byte
// each, and then into planes: all of a block's, or those of as many of its bytes as there is room.

#include "_philox.cuh"
#include "_signs.cuh"
#include "_team.cuh"
#include "_values.cuh"

constexpr int STAGED = 16;  // elements, per thread, that shared memory holds
constexpr float LARGEST = 3.402823466e+38f;
constexpr u32 ONES = 0x01010101u;  // the lowest bit of each of four bytes

struct Form {
    int block, levels, bits;
    bool euclidean;
};

// The team's own part of shared memory: STAGED elements for each of its threads.
struct Room {
    float* values;
    u32* codes;  // four to a word
};

template <int THREADS>
DEVICE Room team_room() {
    __shared__ float4 values[CTA * STAGED / 4];
    __shared__ u32 codes[CTA * STAGED / 4];
    int first = int(threadIdx.x) / THREADS * THREADS * STAGED;
    return {reinterpret_cast<float*>(values) + first, codes + first / 4};
}

// 2**exponent, for a normal number.
DEVICE float power(int exponent) { return __uint_as_float(u32(exponent + 127) << 23); }

DEVICE float value_of(int level, bool negative, float norm, int levels) {
    return (negative ? -norm : norm) * (level > 0 ? power(level - levels) : 0.0f);
}

// The norm, with the block's last piece in shared memory afterwards; NaN where one is not finite.
template <int THREADS>
DEVICE float norm_of(
    Values x, Feedback feedback, i64 low, int size, const Form& form, float* values) {
    constexpr int PIECE = STAGED * THREADS;
    u32 largest = 0;
    double squares = 0.0;
    int thread = team_thread<THREADS>();
    for (int piece = 0; piece < size; piece += PIECE) {
        int count = min(PIECE, size - piece);
        team_sync<THREADS>();  // until the piece before is read by all
        for (int i = 4 * thread; i < count; i += 4 * THREADS) {
            float p[4];
            effective4(x, feedback, low + piece + i, min(4, count - i), p);
            for (int u = 0; u < 4; ++u)
                if (u < count - i) largest = max(largest, magnitude_bits(p[u]));
            store4(values, i, 4, p);
        }
        team_sync<THREADS>();
        if (form.euclidean) squares = lane_sum(values, thread, count, squares, square);
    }
    float most = __uint_as_float(team_max<THREADS>(largest));
    if (!is_finite(most)) return quiet_nan();
    if (!form.euclidean) return most;
    double length = sqrt(team_told<THREADS>(halved(squares)));
    return float(length < double(LARGEST) ? length : double(LARGEST));
}

DEVICE int level_of(float p, float norm, u32 fraction, int levels) {
    float t = __uint_as_float(magnitude_bits(p)) / norm, share = t * power(levels - 1);
    if (share < 1.0f) {
        float steps = float(1 << FRACTION_BITS), most = steps - 1.0f;
        return (int(rintf(fminf(share * steps, most))) + int(fraction)) >> FRACTION_BITS;
    }
    return int((__float_as_uint(t) + fraction) >> FRACTION_BITS) - 127 + levels;
}

// A block that is worked on: its elements, the bytes of each of its planes, and its norm.
struct Block {
    i64 low;
    int size, width;
    float norm;
};

// The codes of four neighbours, a byte each, and what stays behind.
DEVICE u32 round4(
    const float (&p)[4], Feedback feedback, const Block& block, int first, int count,
    const Form& form, const Noise& noise, Drawn drawn, bool at_hand, int place) {
    u32 word = 0;
    float left[4] = {};
    for (int u = 0; u < 4; ++u) {
        int level = 0;
        if (u < count && block.norm > 0.0f) {
            u32 fraction = at_hand ? drawn_fraction(drawn, place + first + u)
                                   : random_fraction(noise, block.low + first + u);
            level = level_of(p[u], block.norm, fraction, form.levels);
        }
        bool negative = level > 0 && p[u] < 0.0f;
        word |= (u32(level) | u32(negative) << (form.bits - 1)) << 8 * u;
        left[u] = (p[u] - value_of(level, negative, block.norm, form.levels)) * feedback.back;
    }
    if (feedback.residual && block.norm == block.norm)
        store4(feedback.residual, block.low + first, count, left);
    return word;
}

// Codes in shared memory, of `width` bytes of each plane of elements, into planes of bits.
template <int THREADS>
DEVICE void pack(const u32* codes, u8* to, i64 at, int width, int stride, int bits) {
    int fours = (width + 3) / 4;
    for (int t = team_thread<THREADS>(); t < bits * fours; t += THREADS) {
        int k = t / fours, i = t % fours;
        u32 word = 0;
        for (int plane = 0; plane < PLANES; ++plane)
            word |= (codes[plane * fours + i] >> k & ONES) << plane;
        store4(to, at + i64(k) * stride + 4 * i, min(4, width - 4 * i), word);
    }
}

// `place` is that of the block's first element in what was drawn.
template <int THREADS>
DEVICE void dither_block(
    Values x, Feedback feedback, u8* codes, float* norms, i64 b, i64 n, const Form& form,
    const Noise& noise, Drawn drawn, bool at_hand, int place) {
    constexpr int MOST = STAGED * THREADS / PLANES;  // bytes of each plane that there is room for
    Room room = team_room<THREADS>();
    i64 low = b * form.block;
    int size = int(min(i64(form.block), n - low));
    float norm = norm_of<THREADS>(x, feedback, low, size, form, room.values);
    Block block = {low, size, sign_width(size), norm};
    bool staged = size <= STAGED * THREADS;
    for (int begin = 0; begin < block.width; begin += MOST) {
        int width = min(MOST, block.width - begin), fours = (width + 3) / 4;
        for (int t = team_thread<THREADS>(); t < PLANES * fours; t += THREADS) {
            int i = 4 * (t % fours), first = t / fours * block.width + begin + i;
            int count = min(min(4, width - i), size - first);
            float p[4] = {};
            if (staged) load4(room.values, first, count, p);
            else effective4(x, feedback, low + first, count, p);
            room.codes[t] =
                round4(p, feedback, block, first, count, form, noise, drawn, at_hand, place);
        }
        team_sync<THREADS>();
        pack<THREADS>(
            room.codes, codes, low / PLANES * form.bits + begin, width, block.width, form.bits);
        team_sync<THREADS>();  // until all codes are packed
    }
    if (team_thread<THREADS>() == 0) norms[b] = norm;
}

template <int THREADS>
DEVICE void dither(
    Values x, Feedback feedback, u8* codes, float* norms, i64 n, const Form& form,
    const Noise& noise) {
    constexpr int TEAMS = CTA / THREADS;
    i64 blocks = (n + form.block - 1) / form.block;
    for (i64 b = i64(blockIdx.x) * TEAMS; b < blocks; b += i64(gridDim.x) * TEAMS) {
        i64 low = b * form.block, span = min(i64(TEAMS) * form.block, n - low);
        Drawn drawn = {nullptr, 0};
        bool at_hand = span <= SPAN;
        if (at_hand) drawn = drawn_for_span(noise, low, int(span));
        int team = int(threadIdx.x) / THREADS;
        if (b + team < blocks)
            dither_block<THREADS>(
                x, feedback, codes, norms, b + team, n, form, noise, drawn, at_hand,
                at_hand ? team * form.block : 0);
    }
}

template <int THREADS>
DEVICE void undither(
    const u8* codes, const float* norms, float* out, i64 n, const Form& form, float weight,
    bool add) {
    u32 levels = (1u << (form.bits - 1)) - 1u;
    i64 blocks = (n + form.block - 1) / form.block;
    for (i64 b = team_number<THREADS>(); b < blocks; b += team_count<THREADS>()) {
        i64 low = b * form.block, at = low / PLANES * form.bits;
        int size = int(min(i64(form.block), n - low)), width = sign_width(size);
        int fours = (width + 3) / 4;
        float norm = norms[b];
        for (int t = team_thread<THREADS>(); t < PLANES * fours; t += THREADS) {
            int plane = t / fours, i = 4 * (t % fours), some = min(4, width - i);
            int first = plane * width + i;
            int count = min(some, size - first);
            combine4(out, low + first, count, weight, add, [&](float (&values)[4]) {
                u32 word = 0;
                for (int k = 0; k < form.bits; ++k)
                    word |= (load4(codes, at + i64(k) * width + i, some) >> plane & ONES) << k;
                for (int u = 0; u < 4; ++u) {
                    u32 code = word >> 8 * u & 0xFFu;
                    values[u] = value_of(int(code & levels), code > levels, norm, form.levels);
                }
            });
        }
    }
}

#define DITHER(name, THREADS)                                                                     \
    CROWDED(                                                                                      \
        name, CTA, 4,                                                                             \
        (const void* x, int kind, float* residual, float loss_scale, float back, u8* codes,       \
         float* norms, i64 n, int block, int levels, int bits, bool euclidean, u32 seed,          \
         u32 stream, u32 step, u32 parameter, i64 start)) {                                       \
        Form form = {block, levels, bits, euclidean};                                             \
        Noise noise = {seed, stream, step, parameter, start};                                     \
        dither<THREADS>({x, kind}, {residual, loss_scale, back}, codes, norms, n, form, noise);   \
    }

#define UNDITHER(name, THREADS)                                                                   \
    KERNEL(                                                                                       \
        name, CTA,                                                                                \
        (const u8* codes, const float* norms, float* out, i64 n, int block, int levels, int bits, \
         float weight, bool add)) {                                                               \
        undither<THREADS>(codes, norms, out, n, {block, levels, bits, false}, weight, add);       \
    }

DITHER(dither_by_warps, WARP)
DITHER(dither_by_ctas, CTA)
UNDITHER(undither_by_warps, WARP)
UNDITHER(undither_by_ctas, CTA)
