// Casts to 16-bit floats and back; see compressa.kernels.casts for the arithmetic.
//
// A thread takes four neighbouring elements and four more at a time, and asks for all that it reads
// of them before it works on any.

#include "_values.cuh"
#include "_sums.cuh"
#include "_team.cuh"

// What stays behind of p, of which `sent` arrives; `before` where no step could ever send it.
DEVICE float kept(float p, float sent, float before, float back, int kind) {
    if (is_finite(sent)) return (p - sent) * back;
    float whole = p * back;
    return is_finite(widen(u16(narrow_bits(whole, kind)), kind)) ? whole : before;
}

template <bool EVEN>
DEVICE void narrow_all(
    const float* x, u16* out, int kind, float* residual, float loss_scale, float back, i64 n) {
    for_batches(n, [&](const Batch& batch) {
        float p[FOURS_A_BATCH][4], left[FOURS_A_BATCH][4] = {};
        UNROLLED for (int v = 0; v < FOURS_A_BATCH; ++v)
            load4<EVEN>(x, batch.i[v], batch.count[v], p[v]);
        if (residual) {
            UNROLLED for (int v = 0; v < FOURS_A_BATCH; ++v)
                load4<EVEN>(residual, batch.i[v], batch.count[v], left[v]);
            UNROLLED for (int v = 0; v < FOURS_A_BATCH; ++v)
                for (int u = 0; u < 4; ++u) p[v][u] = p[v][u] + loss_scale * left[v][u];
        }
        UNROLLED for (int v = 0; v < FOURS_A_BATCH; ++v) {
            u16 halves[4];
            for (int u = 0; u < 4; ++u) halves[u] = u16(narrow_bits(p[v][u], kind));
            store4<EVEN>(out, batch.i[v], batch.count[v], halves);
            if (!residual) continue;
            for (int u = 0; u < 4; ++u)
                left[v][u] = kept(p[v][u], widen(halves[u], kind), left[v][u], back, kind);
            store4<EVEN>(residual, batch.i[v], batch.count[v], left[v]);
        }
    });
}

KERNEL(
    narrow, CTA,
    (const float* __restrict__ x, u16* __restrict__ out, int kind, float* __restrict__ residual,
     float loss_scale, float back, i64 n)) {
    bool even = is_aligned(x, 16) && is_aligned(out, 8) && is_aligned(residual, 16);
    if (even) narrow_all<true>(x, out, kind, residual, loss_scale, back, n);
    else narrow_all<false>(x, out, kind, residual, loss_scale, back, n);
}

template <bool EVEN>
DEVICE void widen_all(Values x, float* out, i64 n, float weight, bool add) {
    for_batches(n, [&](const Batch& batch) {
        u32 raw[FOURS_A_BATCH][4];
        float values[FOURS_A_BATCH][4] = {};
        UNROLLED for (int v = 0; v < FOURS_A_BATCH; ++v)
            load_raw4<EVEN>(x, batch.i[v], batch.count[v], raw[v]);
        UNROLLED for (int v = 0; v < FOURS_A_BATCH; ++v)
            if (add) load4<EVEN>(out, batch.i[v], batch.count[v], values[v]);
        UNROLLED for (int v = 0; v < FOURS_A_BATCH; ++v) {
            float decoded[4];
            widen_raw4(raw[v], x.kind, decoded);
            put_or_add(values[v], decoded, weight, add);
            store4<EVEN>(out, batch.i[v], batch.count[v], values[v]);
        }
    });
}

KERNEL(
    widened, CTA,
    (const void* __restrict__ x, int kind, float* __restrict__ out, i64 n, float weight,
     bool add)) {
    Values values = {x, kind};
    if (is_even(values) && is_aligned(out, 16)) widen_all<true>(values, out, n, weight, add);
    else widen_all<false>(values, out, n, weight, add);
}

template <bool EVEN>
DEVICE void sum_all(const void* const (&given)[MOST], int kind, Sums sums, i64 n, float weight) {
    for (i64 i = 4 * team_number<1>(); i < n; i += 4 * team_count<1>()) {
        int count = int(min(i64(4), n - i));
        u32 raw[MOST][4];
        float decoded[4], total[4];
        FOR_PAYLOADS(r) if (given[r]) load_raw4<EVEN>({given[r], kind}, i, count, raw[r]);
        begin4<EVEN>(sums, i, count, total);
        FOR_PAYLOADS(r) if (given[r]) {
            widen_raw4(raw[r], kind, decoded);
            add4(total, decoded, weight);
        }
        finish4<EVEN>(sums, i, count, total);
    }
}

CROWDED(
    sums, CTA, CROWD,
    (EACH_OF(const void* __restrict__, x), const float* before, void* out, int out_kind, int kind,
     i64 n, float weight)) {
    const void* given[MOST] = ALL_OF(x);
    Sums sums = {before, out, out_kind};
    bool even = are_even(sums);
    FOR_PAYLOADS(r) even = even && is_even({given[r], kind});
    if (even) sum_all<true>(given, kind, sums, n, weight);
    else sum_all<false>(given, kind, sums, n, weight);
}
