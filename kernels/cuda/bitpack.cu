// Bit streams and bitmaps; see compressa.kernels.bitpack for the formats.

#include "_answer.cuh"
#include "_bitmap.cuh"
#include "_tiles.cuh"
#include "_values.cuh"

constexpr int WORD_BITS = 32;

// Whether something that was looked for was found, so that nothing is to be written.
DEVICE bool is_refused(const u64* refused) { return refused && *refused; }

// A thread makes a word of the stream, from the values that overlap it. Where the word's first bit
// lies follows from where that of the thread's last word lay, without a division.
KERNEL(
    pack_bits, CTA,
    (const u32* __restrict__ values, i64 n, int width, u8* __restrict__ out,
     const u64* __restrict__ refused)) {
    if (is_refused(refused)) return;
    u32 mask = 0xFFFFFFFFu >> (WORD_BITS - width);
    i64 size = (n * width + 7) / 8, words = word_count<u32>(out, size);
    i64 first = team_number<1>(), step = team_count<1>() * WORD_BITS;
    // The stream may begin within a word. Values before the first make that bit a positive one.
    i64 bit = first * WORD_BITS - 8 * lead_of<u32>(out) + WORD_BITS * width;
    i64 value = bit / width - WORD_BITS, skip = step / width;
    int offset = int(bit % width), rest = int(step % width);
    for (i64 w = first; w < words; w += team_count<1>()) {
        u32 word = 0;
        i64 v = value;
        for (int held = -offset; held < WORD_BITS; held += width, ++v) {
            u32 one = v >= 0 && v < n ? values[v] & mask : 0;
            word |= held < 0 ? one >> -held : one << held;
        }
        store_word(out, size, w, word);
        value += skip, offset += rest;
        if (offset >= width) offset -= width, ++value;
    }
}

// The 32 bits of a stream that begin at a bit.
DEVICE u32 bits_from(const u8* packed, i64 size, i64 bit) {
    i64 offset = bit + 8 * lead_of<u32>(packed), w = offset / WORD_BITS;
    u64 high = load_word<u32>(packed, size, w + 1);
    return u32((high << WORD_BITS | load_word<u32>(packed, size, w)) >> offset % WORD_BITS);
}

template <bool EVEN>
DEVICE void unpack_all(const u8* packed, int width, u32* out, i64 n) {
    u32 mask = 0xFFFFFFFFu >> (WORD_BITS - width);
    i64 size = (n * width + 7) / 8;
    for (i64 i = 4 * team_number<1>(); i < n; i += 4 * team_count<1>()) {
        int count = int(min(i64(4), n - i));
        u32 values[4];
        for (int u = 0; u < 4; ++u)
            values[u] = u < count ? bits_from(packed, size, (i + u) * width) & mask : 0;
        store4<EVEN>(out, i, count, values);
    }
}

KERNEL(
    unpack_bits, CTA,
    (const u8* __restrict__ packed, int width, u32* __restrict__ out, i64 n)) {
    if (is_aligned(out, 16)) unpack_all<true>(packed, width, out, n);
    else unpack_all<false>(packed, width, out, n);
}

KERNEL(clear_bytes, CTA, (u8* bytes, i64 size, const u64* refused)) {
    if (is_refused(refused)) return;
    i64 words = word_count<uint4>(bytes, size);
    for (i64 w = team_number<1>(); w < words; w += team_count<1>())
        store_16(bytes, size, w, make_uint4(0, 0, 0, 0));
}

// An index that is too large for the bitmap is left out.
KERNEL(set_bits, CTA, (const u32* indices, i64 n, u8* bitmap, i64 bits)) {
    for (i64 low = team_number<WARP>() * WARP; low < n; low += team_count<WARP>() * WARP) {
        i64 i = low + team_thread<WARP>(), bit = i < n ? i64(indices[i]) : bits;
        set_bit_of_lane(bitmap, bit, bit < bits);
    }
}

template <bool EVEN>
DEVICE bool any_too_large(const u32* indices, i64 n, i64 end) {
    bool found = false;
    for (i64 i = 4 * team_number<1>(); i < n; i += 4 * team_count<1>()) {
        int count = int(min(i64(4), n - i));
        u32 four[4];
        load4<EVEN>(indices, i, count, four);
        for (int u = 0; u < 4; ++u) found = found || (u < count && four[u] >= end);
    }
    return found;
}

// Whether an index is not below `end`.
KERNEL(find_too_large, CTA, (const u32* indices, i64 n, i64 end, u64* answer)) {
    bool found = is_aligned(indices, 16) ? any_too_large<true>(indices, n, end)
                                         : any_too_large<false>(indices, n, end);
    answer_any(answer, found);
}

template <bool EVEN>
DEVICE bool any_disorder(const u32* indices, i64 n, i64 end) {
    bool found = false;
    for (i64 i = 4 * team_number<1>(); i < n; i += 4 * team_count<1>()) {
        int count = int(min(i64(4), n - i));
        u32 four[4];
        load4<EVEN>(indices, i, count, four);
        i64 before = i ? i64(indices[i - 1]) : -1;
        for (int u = 0; u < 4; ++u) {
            if (u >= count) continue;
            found = found || four[u] <= before || four[u] >= end;
            before = four[u];
        }
    }
    return found;
}

// Whether an index is not larger than the one before, or not below `end`.
KERNEL(find_disorder, CTA, (const u32* indices, i64 n, i64 end, u64* answer)) {
    bool found = is_aligned(indices, 16) ? any_disorder<true>(indices, n, end)
                                         : any_disorder<false>(indices, n, end);
    answer_any(answer, found);
}

// What checks have found before, for whoever waits for this one; it begins anew.
KERNEL(pass_answer, CTA, (u64* found, u64* answer)) {
    bool fault = blockIdx.x == 0 && threadIdx.x == 0 && *found;
    answer_any(answer, fault);
    if (fault) *found = 0;
}

// A tile is so many words of 64 bits.
KERNEL(count_tiles, CTA, (const u8* bitmap, i64 size, i64 tile, i64 tiles, i64* counts)) {
    i64 words = word_count<u64>(bitmap, size);
    for (i64 t = blockIdx.x; t < tiles; t += gridDim.x) {
        i64 end = min((t + 1) * tile, words), count = 0;
        for (i64 w = t * tile + int(threadIdx.x); w < end; w += CTA)
            count += __popcll(load_word<u64>(bitmap, size, w));
        count = cta_scan(count).total;
        if (threadIdx.x == 0) counts[t] = count;
    }
}

// The positions are put in order in shared memory, from where neighbours go to neighbours. The
// answer is whether there are more than there is room for, or fewer, or a bit from the n-th on.
KERNEL(
    list_tiles, CTA,
    (const u8* bitmap, i64 size, i64 tile, i64 tiles, const i64* offsets, i64 n, u32* indices,
     i64 room, u64* answer)) {
    constexpr u32 ROOM = 4096;
    __shared__ u16 listed[ROOM];
    u32 me = threadIdx.x;
    i64 words = word_count<u64>(bitmap, size);
    bool first_thread = blockIdx.x == 0 && me == 0;
    answer_any(
        answer, first_thread && (offsets[tiles] != room || (n % 8 && bitmap[size - 1] >> n % 8)));
    for (i64 t = blockIdx.x; t < tiles; t += gridDim.x) {
        i64 offset = offsets[t];
        i64 end = min((t + 1) * tile, words);
        for (i64 low = t * tile; low < end; low += CTA) {
            u64 word = low + me < end ? load_word<u64>(bitmap, size, low + me) : 0;
            u32 first = u32(64 * low - 8 * lead_of<u64>(bitmap));
            Scanned<u32> scanned = cta_scan(u32(__popcll(word)));
            u32 rank = scanned.before, total = scanned.total;
            for (u32 done = 0; done < total; done += ROOM) {
                for (; word && rank < done + ROOM; word &= word - 1, ++rank)
                    listed[rank - done] = u16(64 * me + u32(__popcll(~word & (word - 1))));
                __syncthreads();
                i64 at = offset + done, left = max(room - at, i64(0));
                u32 ready = u32(min(i64(min(ROOM, total - done)), left));
                for (u32 i = me; i < ready; i += CTA) indices[at + i] = first + listed[i];
                __syncthreads();
            }
            offset += total;
        }
    }
}
