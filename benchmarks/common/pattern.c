#include "pattern.h"

#include <stdio.h>
#include <string.h>

/*
 * The stamp, from the top: 24 bits process, 16 bits thread, 8 bits pass, 16 bits check sum. One word, so
 * that a read-modify-write, which changes one word, can sign.
 */
static uint64_t check_sum(uint64_t fields, int64_t file, int64_t offset) {
    return mix(mix(fields ^ (uint64_t)offset) + (uint64_t)file) >> 48;
}

uint64_t pattern_word(int64_t file, int64_t offset, struct stamp stamp) {
    const uint64_t fields = ((uint64_t)stamp.process << 40) | ((uint64_t)stamp.thread << 24) |
                            ((uint64_t)stamp.pass << 16);
    return fields | check_sum(fields, file, offset);
}

bool pattern_read(uint64_t word, int64_t file, int64_t offset, struct stamp *stamp) {
    const uint64_t fields = word & ~UINT64_C(0xffff);
    *stamp = (struct stamp){
        .process = (int)(word >> 40),
        .thread = (int)(word >> 24 & 0xffff),
        .pass = (int)(word >> 16 & 0xff),
    };
    /* Passes count from 1: zeros are no stamp, also where their check sum is zero. */
    return stamp->pass != 0 && (word & 0xffff) == check_sum(fields, file, offset);
}

void pattern_fill(uint64_t *record, int64_t bytes, int64_t file, int64_t offset, struct stamp stamp) {
    for (int64_t at = 0; at < bytes; at += PATTERN_UNIT) {
        *record++ = (uint64_t)(offset + at);
        *record++ = pattern_word(file, offset + at, stamp);
    }
}

int64_t pattern_difference(uint64_t a, uint64_t b) {
    uint8_t left[sizeof a];
    uint8_t right[sizeof b];
    memcpy(left, &a, sizeof a);
    memcpy(right, &b, sizeof b);
    int64_t at = 0;
    while (at < (int64_t)sizeof a - 1 && left[at] == right[at]) at++;
    return at;
}

int64_t pattern_check(const uint64_t *record, int64_t bytes, int64_t file, int64_t offset, struct stamp stamp,
                      char found[128]) {
    for (int64_t at = 0; at < bytes; at += PATTERN_UNIT, record += 2) {
        const uint64_t place = (uint64_t)(offset + at);
        const uint64_t word = pattern_word(file, offset + at, stamp);
        struct stamp other;
        if (record[0] == place && record[1] == word) continue;
        if (record[0] != place) {
            (void)snprintf(found, 128, "0x%016llx instead of the offset", (unsigned long long)record[0]);
            return offset + at + pattern_difference(record[0], place);
        }
        if (pattern_read(record[1], file, offset + at, &other)) {
            (void)snprintf(found, 128, "process %d, thread %d, pass %d", other.process, other.thread, other.pass);
        } else {
            (void)snprintf(found, 128, "no stamp that belongs here");
        }
        return offset + at + 8 + pattern_difference(record[1], word);
    }
    return -1;
}
