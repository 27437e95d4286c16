// Codes of 4 bits that stand for integers of a table; see compressa.kernels.hadamard.
#pragma once

#include "_kernel.cuh"

constexpr int CELLS = 256;

// The 16 integers of the table, a byte each.
struct Table {
    u64 low, high;
    double clip;
};

DEVICE u32 entry(const Table& table, int code) {
    return u32((code < 8 ? table.low : table.high) >> 8 * (code % 8)) & 255u;
}

DEVICE float levels_of(const Table& table) { return float(entry(table, 15)); }

// For each integer below the last, which code's stretch of the table goes on from there: the code,
// its integer, and the stretch's length. One for each thread of the CTA.
DEVICE void lay_cells(const Table& table, u32* cells) {
    u32 low = threadIdx.x, code = 0;
    for (int c = 1; c < 15; ++c) code += entry(table, c) <= low;
    u32 integer = entry(table, int(code));
    cells[low] = code | integer << 8 | (entry(table, int(code) + 1) - integer) << 16;
}

// How many of the thresholds are below t. They rise, and each lies in its own stretch, so only that
// of the stretch of t has to be looked at.
DEVICE u32 code_of(float t, u32 fraction, const u32* cells, float levels) {
    if (!(t > 0.0f)) return 0u;
    if (t > levels) return 15u;
    u32 cell = cells[int(ceilf(t)) - 1];
    float low = float(cell >> 8 & 255u), gap = float(cell >> 16) * 0x1p-23f;
    float threshold = low + gap * (float(fraction) + 0.5f);
    return (cell & 255u) + u32(t > threshold);
}
