// Natural dithering; see compressa.kernels.natural_dithering for the arithmetic and the layout.
//
// A team takes a block and reads it into shared memory, where its norm is found; a block that does
// not fit goes through in pieces, and is read once more. Codes go to shared memory as well, a byte
// each, and then into planes: all of a block's, or those of as many of its bytes as there is room.
// Blocks of the usual sizes are held in registers, where a thread has all planes of four bytes.

#include "_held.cuh"
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
    __shared__ u32 codes[CTA * STAGED / 4];
    int first = int(threadIdx.x) / THREADS * THREADS * STAGED;
    return {team_stage<THREADS, STAGED>(), codes + first / 4};
}

// 2**exponent, for a normal number.
DEVICE float power(int exponent) { return __uint_as_float(u32(exponent + 127) << 23); }

DEVICE float value_of(int level, bool negative, float norm, int levels) {
    return (negative ? -norm : norm) * (level > 0 ? power(level - levels) : 0.0f);
}

// The norm of a block whose largest magnitude and sum of squares, where it matters, are known.
DEVICE float length_of(float most, double squares, const Form& form) {
    if (!is_finite(most)) return quiet_nan();
    if (!form.euclidean) return most;
    double length = sqrt(squares);
    return float(length < double(LARGEST) ? length : double(LARGEST));
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
        if (form.euclidean) squares = lane_sum(values, thread, count, squares, add_square);
    }
    float most = __uint_as_float(team_max<THREADS>(largest));
    if (!form.euclidean || !is_finite(most)) return length_of(most, 0.0, form);
    return length_of(most, team_told<THREADS>(halved(squares)), form);
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

// The codes of four neighbours, a byte each, and in the place of p what is left of them.
DEVICE u32 encode4(
    float (&p)[4], const u32 (&fractions)[4], float norm, float back, const Form& form) {
    u32 word = 0;
    for (int u = 0; u < 4; ++u) {
        int level = norm > 0.0f ? level_of(p[u], norm, fractions[u], form.levels) : 0;
        bool negative = level > 0 && p[u] < 0.0f;
        word |= (u32(level) | u32(negative) << (form.bits - 1)) << 8 * u;
        p[u] = (p[u] - value_of(level, negative, norm, form.levels)) * back;
    }
    return word;
}

// The same for `count` that begin at `first` of the block, and what is left goes to the residual.
DEVICE u32 round4(
    float (&p)[4], Feedback feedback, const Block& block, int first, int count, const Form& form,
    const Numbers& numbers) {
    u32 fractions[4];
    fractions_of(numbers, block.low + first, count, fractions);
    u32 word = encode4(p, fractions, block.norm, feedback.back, form);
    if (feedback.residual && block.norm == block.norm)
        store4(feedback.residual, block.low + first, count, p);
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

template <int THREADS>
DEVICE void dither_block(
    Values x, Feedback feedback, u8* codes, float* norms, i64 b, i64 n, const Form& form,
    const Numbers& numbers) {
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
            room.codes[t] = round4(p, feedback, block, first, count, form, numbers);
        }
        team_sync<THREADS>();
        pack<THREADS>(
            room.codes, codes, low / PLANES * form.bits + begin, width, block.width, form.bits);
        team_sync<THREADS>();  // until all codes are packed
    }
    if (team_thread<THREADS>() == 0) norms[b] = norm;
}

// The blocks from b on, those of all CTAs of the launch.
template <int THREADS>
DEVICE void dither(
    Values x, Feedback feedback, u8* codes, float* norms, i64 n, const Form& form,
    const Noise& noise, i64 b = 0) {
    constexpr int TEAMS = CTA / THREADS;
    i64 blocks = (n + form.block - 1) / form.block;
    for (b += i64(blockIdx.x) * TEAMS; b < blocks; b += i64(gridDim.x) * TEAMS) {
        i64 low = b * form.block, own = b + int(threadIdx.x) / THREADS;
        Numbers numbers = numbers_of<true>(noise, low, min(i64(TEAMS) * form.block, n - low));
        if (own < blocks)
            dither_block<THREADS>(x, feedback, codes, norms, own, n, form, numbers);
    }
}

RARE void dither_others(
    Values x, Feedback feedback, u8* codes, float* norms, i64 n, Form form, Noise noise, i64 b) {
    dither<WARP>(x, feedback, codes, norms, n, form, noise, b);
}

// By teams that hold their blocks in registers.
template <class H>
DEVICE void dither_held(
    Values x, Feedback feedback, u8* codes, float* norms, i64 n, const Form& form,
    const Noise& noise) {
    bool even = are_even(x, feedback.residual, codes);
    even = even && has_even_numbers(noise.start);
    i64 whole = whole_blocks(n, even, H::TEAMS, H::BLOCK), own = int(threadIdx.x) / H::TEAM;
    auto take = [&](const Asked<H>& asked, i64 b, auto ask_next) {
        Numbers numbers = numbers_of<true>(noise, b * H::BLOCK, H::TEAMS * H::BLOCK);
        float p[H::FOURS][4];
        i64 low = (b + own) * H::BLOCK;
        effective_held<H>(asked, x, feedback, p);
        double squares = form.euclidean ? sum_held<H, STAGED>(p, add_square) : 0.0;
        float norm = length_of(__uint_as_float(largest_held<H>(p)), squares, form);
        ask_next();
        u32 words[PLANES], fractions[4];
        UNROLLED for (int plane = 0; plane < PLANES; ++plane) {
            fractions_of<true>(numbers, four_at<H>(low, plane), 4, fractions);
            words[plane] = encode4(p[plane], fractions, norm, feedback.back, form);
        }
        for (int k = 0; k < form.bits; ++k) {
            u32 word = 0;
            UNROLLED for (int plane = 0; plane < PLANES; ++plane)
                word |= (words[plane] >> k & ONES) << plane;
            store4<true>(codes, four_at<H>(((b + own) * form.bits + k) * H::WIDTH, 0), 4, word);
        }
        if (feedback.residual && norm == norm) leave_held<H>(feedback.residual, low, p);
        if (team_thread<H::TEAM>() == 0) norms[b + own] = norm;
    };
    for_held<H>(x, feedback.residual, whole, take);
    if (whole * H::BLOCK < n) dither_others(x, feedback, codes, norms, n, form, noise, whole);
}

template <int THREADS, bool WHOLE>
DEVICE void undither_block(
    const u8* codes, float norm, float* out, int size, const Form& form, float weight, bool add) {
    u32 levels = (1u << (form.bits - 1)) - 1u;
    int width = sign_width(size);
    for_planes<THREADS, WHOLE>(size, [&](int plane, int i, int some, int first, int count) {
        combine4<WHOLE>(out, first, count, weight, add, [&](float (&values)[4]) {
            u32 word = 0;
            for (int k = 0; k < form.bits; ++k)
                word |= (load4<WHOLE>(codes, k * width + i, some) >> plane & ONES) << k;
            for (int u = 0; u < 4; ++u) {
                u32 code = word >> 8 * u & 0xFFu;
                values[u] = value_of(int(code & levels), code > levels, norm, form.levels);
            }
        });
    });
}

template <int THREADS>
DEVICE void undither(
    const u8* codes, const float* norms, float* out, i64 n, const Form& form, float weight,
    bool add) {
    i64 blocks = (n + form.block - 1) / form.block;
    bool even = has_even_planes(form.block) && is_aligned(codes, 4) && is_aligned(out, 16);
    for (i64 b = team_number<THREADS>(); b < blocks; b += team_count<THREADS>()) {
        i64 low = b * form.block;
        int size = int(min(i64(form.block), n - low));
        const u8* own = codes + low / PLANES * form.bits;
        if (even && size == form.block)
            undither_block<THREADS, true>(own, norms[b], out + low, size, form, weight, add);
        else
            undither_block<THREADS, false>(own, norms[b], out + low, size, form, weight, add);
    }
}

#define DITHER_AS(name, ctas, dither)                                                             \
    CROWDED(                                                                                      \
        name, CTA, ctas,                                                                          \
        (const void* __restrict__ x, int kind, float* __restrict__ residual, float loss_scale,    \
         float back, u8* __restrict__ codes, float* __restrict__ norms, i64 n, int block,         \
         int levels, int bits, bool euclidean, u32 seed, u32 stream, u32 step, u32 parameter,     \
         i64 start)) {                                                                            \
        Form form = {block, levels, bits, euclidean};                                             \
        Noise noise = {seed, stream, step, parameter, start};                                     \
        dither({x, kind}, {residual, loss_scale, back}, codes, norms, n, form, noise);            \
    }

#define DITHER(name, THREADS) DITHER_AS(name, 4, dither<THREADS>)
#define DITHER_HELD(name, BLOCK)                                                                  \
    DITHER_AS(name, (Held<BLOCK, PLANES, false>::CTAS), (dither_held<Held<BLOCK, PLANES, false>>))

#define UNDITHER(name, THREADS)                                                                   \
    KERNEL(                                                                                       \
        name, CTA,                                                                                \
        (const u8* __restrict__ codes, const float* __restrict__ norms, float* __restrict__ out,  \
         i64 n, int block, int levels, int bits, float weight, bool add)) {                       \
        undither<THREADS>(codes, norms, out, n, {block, levels, bits, false}, weight, add);       \
    }

DITHER(dither_by_warps, WARP)
DITHER(dither_by_ctas, CTA)
DITHER_HELD(dither_of_512, 512)
DITHER_HELD(dither_of_1024, 1024)
UNDITHER(undither_by_warps, WARP)
UNDITHER(undither_by_ctas, CTA)
