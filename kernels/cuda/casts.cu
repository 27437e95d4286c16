// Casts to 16-bit floats and back; see compressa.kernels.casts for the arithmetic.
//
// Each thread takes four neighbouring elements.

#include "_values.cuh"
#include "_sums.cuh"
#include "_team.cuh"

// What stays behind of p, of which `sent` arrives; `before` where no step could ever send it.
DEVICE float kept(float p, float sent, float before, float back, int kind) {
    if (is_finite(sent)) return (p - sent) * back;
    float whole = p * back;
    return is_finite(widen(u16(narrow_bits(whole, kind)), kind)) ? whole : before;
}

KERNEL(
    narrow, CTA,
    (const float* x, u16* out, int kind, float* residual, float loss_scale, float back, i64 n)) {
    for (i64 i = 4 * team_number<1>(); i < n; i += 4 * team_count<1>()) {
        int count = int(min(i64(4), n - i));
        float p[4], left[4];
        u16 halves[4];
        load4(x, i, count, p);
        if (residual) {
            load4(residual, i, count, left);
            for (int u = 0; u < 4; ++u) p[u] = p[u] + loss_scale * left[u];
        }
        for (int u = 0; u < 4; ++u) halves[u] = u16(narrow_bits(p[u], kind));
        store4(out, i, count, halves);
        if (residual) {
            for (int u = 0; u < 4; ++u)
                left[u] = kept(p[u], widen(halves[u], kind), left[u], back, kind);
            store4(residual, i, count, left);
        }
    }
}

KERNEL(widened, CTA, (const void* x, int kind, float* out, i64 n, float weight, bool add)) {
    for (i64 i = 4 * team_number<1>(); i < n; i += 4 * team_count<1>()) {
        int count = int(min(i64(4), n - i));
        float values[4];
        load4({x, kind}, i, count, values);
        combine4(out, i, count, values, weight, add);
    }
}

KERNEL(
    sums, CTA,
    (EACH_OF(const void*, x), const float* before, void* out, int out_kind, int kind, i64 n,
     float weight)) {
    const void* given[MOST] = ALL_OF(x);
    Sums sums = {before, out, out_kind};
    for (i64 i = 4 * team_number<1>(); i < n; i += 4 * team_count<1>()) {
        int count = int(min(i64(4), n - i));
        float decoded[MOST][4], total[4];
        FOR_PAYLOADS(r) if (given[r]) load4({given[r], kind}, i, count, decoded[r]);
        begin4(sums, i, count, total);
        FOR_PAYLOADS(r) if (given[r]) add4(total, decoded[r], weight);
        finish4(sums, i, count, total);
    }
}
