#include <math.h>

#include "netio.h"

static int bin_of(double seconds) {
    const uint64_t nanoseconds = (uint64_t)(seconds * 1e9);
    if (nanoseconds < PARTS) return (int)nanoseconds;
    const int octave = 63 - __builtin_clzll(nanoseconds);
    const int part = (int)(nanoseconds >> (octave - PART_BITS)) & (PARTS - 1);
    const int bin = PARTS + (octave - PART_BITS) * PARTS + part;
    return bin < BINS ? bin : BINS - 1;
}

double bin_seconds(int bin) {
    if (bin < PARTS) return bin / 1e9;
    const int octave = PART_BITS + (bin - PARTS) / PARTS;
    const double width = ldexp(1, octave - PART_BITS);
    return (ldexp(1, octave) + width * ((bin - PARTS) % PARTS + 0.5)) / 1e9;
}

void latency_add(struct latency *latency, double seconds) {
    latency->counts[bin_of(seconds)]++;
    latency->sum += seconds;
    latency->sum_squares += seconds * seconds;
    if (seconds > latency->longest) latency->longest = seconds;
    if (latency->shortest <= 0 || seconds < latency->shortest) latency->shortest = seconds;
}

void latency_merge(struct latency *into, const struct latency *from) {
    for (int bin = 0; bin < BINS; bin++) {
        into->counts[bin] += from->counts[bin];
    }
    into->sum += from->sum;
    into->sum_squares += from->sum_squares;
    if (from->longest > into->longest) into->longest = from->longest;
    if (into->shortest <= 0 || (from->shortest > 0 && from->shortest < into->shortest)) {
        into->shortest = from->shortest;
    }
}

/* The least value that `part` of all do not exceed. */
static double percentile(const struct latency *latency, double count, double part) {
    double seen = 0;
    for (int bin = 0; bin < BINS; bin++) {
        seen += latency->counts[bin];
        if (seen > 0 && seen >= part * count) {
            const double seconds = bin_seconds(bin);
            /* The middle of a bin may be beyond what was in it. */
            if (seconds > latency->longest) return latency->longest;
            return seconds < latency->shortest ? latency->shortest : seconds;
        }
    }
    return latency->longest;
}

struct summary latency_summary(const struct latency *latency) {
    struct summary summary = {.shortest = latency->shortest, .longest = latency->longest};
    for (int bin = 0; bin < BINS; bin++) {
        summary.count += latency->counts[bin];
    }
    if (summary.count <= 0) return summary;
    summary.mean = latency->sum / summary.count;
    const double variance = latency->sum_squares / summary.count - summary.mean * summary.mean;
    summary.sigma = variance > 0 ? sqrt(variance) : 0;
    summary.p50 = percentile(latency, summary.count, 0.5);
    summary.p90 = percentile(latency, summary.count, 0.9);
    summary.p99 = percentile(latency, summary.count, 0.99);
    summary.p999 = percentile(latency, summary.count, 0.999);
    return summary;
}
