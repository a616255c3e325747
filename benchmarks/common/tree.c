#define _GNU_SOURCE
#include "tree.h"

#include <errno.h>
#include <ftw.h>
#include <stddef.h>
#include <stdio.h>

/* Directories that are open at a time. */
enum { DIRECTORIES_MAX = 64 };

/* nftw gives no place for it. */
static int64_t count;

static int remove_one(const char *path, const struct stat *status, int kind, struct FTW *place) {
    (void)status;
    (void)kind;
    (void)place;
    if (remove(path) != 0) return errno == ENOENT ? 0 : -1;
    count++;
    return 0;
}

bool tree_remove(const char *path, int64_t *removed) {
    count = 0;
    const bool is_gone = nftw(path, remove_one, DIRECTORIES_MAX, FTW_DEPTH | FTW_PHYS) == 0 || errno == ENOENT;
    if (removed != NULL) *removed += count;
    return is_gone;
}
