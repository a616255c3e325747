/*
 * Removal of a directory with everything in it.
 */
#ifndef GUPFS_TREE_H
#define GUPFS_TREE_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Removes `path` and what is below it; symbolic links are not followed. Adds the names it removed to
 * `removed`, unless that is NULL. False: it could not, see errno. What is not there is removed already. One
 * thread of a process at a time.
 */
bool tree_remove(const char *path, int64_t *removed);

#endif
