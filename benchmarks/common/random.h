/*
 * Numbers without pattern that are the same in each run (splitmix64 by Steele, Lea and Flood, 2014).
 */
#ifndef GUPFS_RANDOM_H
#define GUPFS_RANDOM_H

#include <stdint.h>

/* Mixes the bits of a word so that each bit of the result depends on all of them. */
static inline uint64_t mix(uint64_t word) {
    word ^= word >> 30;
    word *= UINT64_C(0xbf58476d1ce4e5b9);
    word ^= word >> 27;
    word *= UINT64_C(0x94d049bb133111eb);
    return word ^ (word >> 31);
}

/* A row of numbers; all that is random in it is where it begins. */
struct stream {
    uint64_t state;
};

static inline uint64_t stream_next(struct stream *stream) {
    stream->state += UINT64_C(0x9e3779b97f4a7c15);
    return mix(stream->state);
}

/* The next number from 0 to `count` - 1; `count` is not 0. */
static inline uint64_t stream_below(struct stream *stream, uint64_t count) {
    return (uint64_t)(((unsigned __int128)stream_next(stream) * count) >> 64);
}

#endif
