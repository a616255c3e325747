#include "mptio.h"

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
    return (word & 0xffff) == check_sum(fields, file, offset);
}

void pattern_fill(uint64_t *record, int64_t bytes, int64_t file, int64_t offset, struct stamp stamp) {
    for (int64_t at = 0; at < bytes; at += PATTERN_UNIT) {
        *record++ = (uint64_t)(offset + at);
        *record++ = pattern_word(file, offset + at, stamp);
    }
}
