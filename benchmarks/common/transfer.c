#define _GNU_SOURCE
#include "transfer.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "job.h"

bool transfer(int file, bool is_write, void *bytes, int64_t size, int *error) {
    uint8_t *at = bytes;
    while (size > 0) {
        const ssize_t moved = is_write ? write(file, at, (size_t)size) : read(file, at, (size_t)size);
        if (moved < 0 && errno == EINTR) continue;
        if (moved <= 0) {
            *error = moved < 0 ? errno : is_write ? ENOSPC : 0;
            return false;
        }
        at += moved;
        size -= moved;
    }
    return true;
}

void traces_open(struct traces *traces, const char *variable, int count) {
    const char *directory = getenv(variable);
    *traces = (struct traces){.count = count};
    if (directory == NULL || *directory == '\0') return;
    traces->files = calloc((size_t)count, sizeof(FILE *));
    if (traces->files == NULL) {
        fail("no memory for the trace");
        return;
    }
    for (int i = 0; i < count; i++) {
        char path[PATH_MAX];
        if (snprintf(path, sizeof path, "%s/%d.%d", directory, job.rank, i) >= (int)sizeof path) {
            fail("%s: the name is too long", variable);
            return;
        }
        traces->files[i] = fopen(path, "we");
        if (traces->files[i] == NULL) {
            fail("cannot write the trace %s: %s", path, strerror(errno));
            return;
        }
    }
}

FILE *traces_at(const struct traces *traces, int index) {
    return traces->files == NULL ? NULL : traces->files[index];
}

void traces_close(struct traces *traces) {
    if (traces->files == NULL) return;
    for (int i = 0; i < traces->count; i++) {
        if (traces->files[i] == NULL) continue;
        const bool is_bad = ferror(traces->files[i]) != 0;
        if (fclose(traces->files[i]) != 0 || is_bad) fail("cannot write the trace of thread %d", i);
    }
    free(traces->files);
    traces->files = NULL;
}
