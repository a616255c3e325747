/*
 * The directory that a job works in: the one that was named, or a unique one made in it.
 */
#ifndef GUPFS_PLACE_H
#define GUPFS_PLACE_H

#include <limits.h>
#include <stdbool.h>

struct place {
    char directory[PATH_MAX];
    bool made; /* By us: to be removed. */
};

/*
 * Collective: looks at `directory`, or with `unique` makes one of this program's name in it. False: somebody
 * cannot work there and has said so.
 */
bool place_prepare(struct place *place, const char *directory, bool unique);

/* Removes a directory that was made, which is empty; process 0. `fail`s. */
void place_remove(struct place *place);

#endif
