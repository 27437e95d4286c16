// The first bytes of an array, see compressa.kernels.prefix, and of its parts, see _parts.py.

#include "_answer.cuh"
#include "_bytes.cuh"

// Byte b of eight words, the lowest first. They are picked: a thread that indexed them would need
// memory of its own.
DEVICE u8 byte_of(
    int b, u32 word0, u32 word1, u32 word2, u32 word3, u32 word4, u32 word5, u32 word6, u32 word7) {
    int w = b / 4;
    u32 low = w & 1 ? (w & 2 ? word3 : word1) : (w & 2 ? word2 : word0);
    u32 high = w & 1 ? (w & 2 ? word7 : word5) : (w & 2 ? word6 : word4);
    return u8((w & 4 ? high : low) >> 8 * (b % 4));
}

// The first 32 threads take a byte each, at any address.
KERNEL(
    write_prefix, CTA,
    (u8* x, int size, u32 word0, u32 word1, u32 word2, u32 word3, u32 word4, u32 word5, u32 word6,
     u32 word7)) {
    int b = blockIdx.x ? size : int(threadIdx.x);
    if (b < size) x[b] = byte_of(b, word0, word1, word2, word3, word4, word5, word6, word7);
}

KERNEL(
    find_difference, CTA,
    (const u8* x, int size, u32 word0, u32 word1, u32 word2, u32 word3, u32 word4, u32 word5,
     u32 word6, u32 word7, u64* answer)) {
    int b = blockIdx.x ? size : int(threadIdx.x);
    bool found =
        b < size && x[b] != byte_of(b, word0, word1, word2, word3, word4, word5, word6, word7);
    answer_any(answer, found);
}

// One thread: where a part begins is known when the length of the last one is.
KERNEL(list_parts, CTA, (const u8* x, i64 size, i64 at, i64 parts, i64* told)) {
    if (blockIdx.x || threadIdx.x) return;
    for (i64 part = 0; part < parts; ++part) {
        i64 length = word_of_bytes<u32>(x, size, at);
        told[2 * part] = length;
        told[2 * part + 1] = word_of_bytes<u32>(x, size, at + 8);
        at += 8 + (length + 7) / 8 * 8;
    }
}
