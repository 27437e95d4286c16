// A sum in the order of its terms, by many threads at once, with the bits that one would get.
//
// As long as a total stays between 2^e and 2^(e+1), it is a whole number of units, and so what a
// term adds to it is the term rounded to units: the same whatever the total is, but for terms that
// lie halfway between two units. Such numbers of units can be added in any order. Where a total
// leaves its range or a term lies halfway, one thread adds that window's terms one by one.
#pragma once

#include "_scan.cuh"

constexpr int TERMS_EACH = 4;
constexpr int TERMS = CTA * TERMS_EACH;  // of a window

// The power of two at or below a number that is not negative; zero for zero.
DEVICE double power_below(double number) {
    return __longlong_as_double(__double_as_longlong(number) & 0x7FF0000000000000ll);
}

// Terms are not negative. All threads of a CTA come here.
DEVICE double sum_in_order(const double* terms, i64 count) {
    __shared__ double window[TERMS];
    double total = 0.0;
    for (i64 low = 0; low < count; low += TERMS) {
        int size = int(min(i64(TERMS), count - low));
        double base = power_below(total), half = base * 0x1p-53, added = 0.0;
        bool halfway = base == 0.0;
        for (int e = 0; e < TERMS_EACH; ++e) {
            int i = e * CTA + int(threadIdx.x);
            double term = i < size ? fresh(terms + low + i) : 0.0;
            double whole = (base + term) - base, rest = term - whole;
            halfway = halfway || rest == half || rest == -half;
            window[i] = term, added += whole;
        }
        double sum = cta_scan(added).total;
        bool alone = team_max<CTA>(halfway) || !(total + sum < 2.0 * base);
        if (!alone) {
            total += sum;
            continue;
        }
        if (threadIdx.x == 0)
            for (int i = 0; i < size; ++i) total += window[i];
        total = team_told<CTA>(total);
    }
    return total;
}
