// Bytes at any address, seen as the aligned words that cover them.
//
// The first and the last word may be covered in part: they are read and written byte by byte, and
// nothing beside the bytes is touched.
#pragma once

#include "_kernel.cuh"

// Bytes of the first word that lie before the first byte.
template <class Word>
DEVICE int lead_of(const void* bytes) {
    return int(reinterpret_cast<u64>(bytes) % sizeof(Word));
}

// Number of words that `size` bytes lie in.
template <class Word>
DEVICE i64 word_count(const void* bytes, i64 size) {
    constexpr int EACH = sizeof(Word);
    return (lead_of<Word>(bytes) + size + EACH - 1) / EACH;
}

// The word that begins at a byte, which may lie before the first one; zeros for what is not there.
template <class Word>
DEVICE Word word_of_bytes(const u8* bytes, i64 size, i64 first) {
    Word word = 0;
    for (int b = 0; b < int(sizeof(Word)); ++b)
        if (first + b >= 0 && first + b < size) word |= Word(bytes[first + b]) << 8 * b;
    return word;
}

template <class Word>
DEVICE Word load_word(const u8* bytes, i64 size, i64 number) {
    constexpr int EACH = sizeof(Word);
    i64 first = number * EACH - lead_of<Word>(bytes);
    if (first >= 0 && first + EACH <= size) return *reinterpret_cast<const Word*>(bytes + first);
    return word_of_bytes<Word>(bytes, size, first);
}

// Sixteen bytes, as `load_word`.
DEVICE uint4 load_16(const u8* bytes, i64 size, i64 number) {
    i64 first = number * 16 - lead_of<uint4>(bytes);
    if (first >= 0 && first + 16 <= size) return *reinterpret_cast<const uint4*>(bytes + first);
    return make_uint4(
        word_of_bytes<u32>(bytes, size, first), word_of_bytes<u32>(bytes, size, first + 4),
        word_of_bytes<u32>(bytes, size, first + 8), word_of_bytes<u32>(bytes, size, first + 12));
}

template <class Word>
DEVICE void store_bytes(u8* bytes, i64 size, i64 first, Word word) {
    for (int b = 0; b < int(sizeof(Word)); ++b)
        if (first + b >= 0 && first + b < size) bytes[first + b] = u8(word >> 8 * b);
}

template <class Word>
DEVICE void store_word(u8* bytes, i64 size, i64 number, Word word) {
    constexpr int EACH = sizeof(Word);
    i64 first = number * EACH - lead_of<Word>(bytes);
    if (first >= 0 && first + EACH <= size) {
        *reinterpret_cast<Word*>(bytes + first) = word;
        return;
    }
    store_bytes(bytes, size, first, word);
}

DEVICE void store_16(u8* bytes, i64 size, i64 number, uint4 four) {
    i64 first = number * 16 - lead_of<uint4>(bytes);
    if (first >= 0 && first + 16 <= size) {
        *reinterpret_cast<uint4*>(bytes + first) = four;
        return;
    }
    store_bytes(bytes, size, first, four.x), store_bytes(bytes, size, first + 4, four.y);
    store_bytes(bytes, size, first + 8, four.z), store_bytes(bytes, size, first + 12, four.w);
}
