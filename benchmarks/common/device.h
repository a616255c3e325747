/*
 * Block and raw devices, and files that stand in for them.
 */
#ifndef GUPFS_DEVICE_H
#define GUPFS_DEVICE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { DEVICES_MAX = 64 };

struct device {
    dev_t node;
    ino_t inode;
    int64_t bytes; /* Negative: unknown. */
    int64_t block_bytes;
};

/* Looks at all devices, and tells the largest of their blocks (1 if there is no device). False: it has `fail`ed. */
bool devices_look(const char *const *paths, int count, struct device *devices, int64_t *block_bytes);

#endif
