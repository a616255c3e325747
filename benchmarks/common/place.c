#define _GNU_SOURCE
#include "place.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "job.h"

static void make(struct place *place, const char *directory, bool unique) {
    const int length = unique ? snprintf(place->directory, PATH_MAX, "%s/%s_XXXXXX", directory, job.program)
                              : snprintf(place->directory, PATH_MAX, "%s", directory);
    if (length >= PATH_MAX) {
        fail("the directory's name is too long");
    } else if (unique && mkdtemp(place->directory) == NULL) {
        fail("cannot make a directory in %s: %s", directory, strerror(errno));
    }
}

bool place_prepare(struct place *place, const char *directory, bool unique) {
    if (job.rank == 0) make(place, directory, unique);
    place->made = unique && !job_should_stop();
    if (!job_agree()) {
        place->made = false;
        return false;
    }
    job_broadcast(place->directory, PATH_MAX);
    struct stat status;
    if (stat(place->directory, &status) != 0) {
        fail("directory %s: %s", place->directory, strerror(errno));
    } else if (!S_ISDIR(status.st_mode)) {
        fail("%s is not a directory", place->directory);
    } else if (access(place->directory, W_OK | X_OK) != 0) {
        fail("cannot make files in %s: %s", place->directory, strerror(errno));
    }
    return job_agree();
}

void place_remove(struct place *place) {
    if (job.rank == 0 && place->made && rmdir(place->directory) != 0) {
        fail("cannot remove the directory %s: %s", place->directory, strerror(errno));
    }
    place->made = false;
}
