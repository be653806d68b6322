/* Log-linear latency histogram: 128 sub-buckets for each power of two, so within 0.8 %. */
#ifndef HIST_H
#define HIST_H

#include <stdint.h>

enum { HIST_SUB_BITS = 7, HIST_SUB = 1 << HIST_SUB_BITS };
enum { HIST_BUCKETS = (64 - HIST_SUB_BITS) * HIST_SUB };

typedef struct {
    uint64_t count[HIST_BUCKETS];
    uint64_t total;
    int64_t max_ns;
} hist_t;

static inline int hist_index(uint64_t ns) {
    if (ns < HIST_SUB) return (int)ns;
    int shift = 63 - __builtin_clzll(ns) - HIST_SUB_BITS;
    int index = (shift + 1) * HIST_SUB + (int)((ns >> shift) - HIST_SUB);
    return index < HIST_BUCKETS ? index : HIST_BUCKETS - 1;
}

static inline void hist_add(hist_t *h, int64_t ns) {
    if (ns < 0) ns = 0;
    h->count[hist_index((uint64_t)ns)]++;
    h->total++;
    if (ns > h->max_ns) h->max_ns = ns;
}

/* The value in ns (middle of its bucket) at or below which a fraction q of the samples lie. */
static inline double hist_quantile_ns(const hist_t *h, double q) {
    if (h->total == 0) return 0.0;
    uint64_t wanted = (uint64_t)(q * (double)h->total + 0.5), seen = 0;
    if (wanted < 1) wanted = 1;
    for (int i = 0; i < HIST_BUCKETS; i++) {
        seen += h->count[i];
        if (seen < wanted) continue;
        if (i < HIST_SUB) return i;
        int shift = i / HIST_SUB - 1;
        double middle = ((double)(HIST_SUB + i % HIST_SUB) + 0.5) * (double)(1ULL << shift);
        return middle < (double)h->max_ns ? middle : (double)h->max_ns;
    }
    return (double)h->max_ns;
}

#endif
