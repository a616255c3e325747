/*
 * The pattern of -C: what each word of a file must be, and who wrote it.
 *
 * Each PATTERN_UNIT bytes of a file are two words: their own offset in the file, and a stamp.
 */
#ifndef GUPFS_PATTERN_H
#define GUPFS_PATTERN_H

#include <stdbool.h>
#include <stdint.h>

#include "random.h"

enum { PATTERN_UNIT = 16 };

/* Who wrote a unit. */
struct stamp {
    int process; /* Below 2^24. */
    int thread;  /* Below 2^16. */
    int pass;    /* Below 2^8; 1 for the first test of the run. */
};

/* The stamp as a word, with a check sum over file and offset of its unit. */
uint64_t pattern_word(int64_t file, int64_t offset, struct stamp stamp);
/* What a word says; false: nobody can have written it at this offset of this file. */
bool pattern_read(uint64_t word, int64_t file, int64_t offset, struct stamp *stamp);
/* Fills a record of `bytes` bytes for `offset`. */
void pattern_fill(uint64_t *record, int64_t bytes, int64_t file, int64_t offset, struct stamp stamp);

/*
 * The first byte of the record at `offset` of `file` that is not what `stamp` wrote, counted from the begin of
 * the file; negative: all are. `found` (128 bytes) tells what is in its unit instead.
 */
int64_t pattern_check(const uint64_t *record, int64_t bytes, int64_t file, int64_t offset, struct stamp stamp,
                      char found[128]);

/* The first byte in which two words differ. */
int64_t pattern_difference(uint64_t a, uint64_t b);

#endif
