#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "metabench.h"

/*
 * An archive (POSIX ustar) with as many files, directories and bytes as the document's: sizes from nothing to
 * some times the mean, as sources have them, in a tree where each directory has up to four others.
 */

enum { BLOCK_BYTES = 512, CHILDREN_MAX = 4, WEIGHTS = 64 };

struct header {
    char name[100];
    char mode[8];
    char user[8];
    char group[8];
    char size[12];
    char time[12];
    char sum[8];
    char kind;
    char link[100];
    char magic[6];
    char version[2];
    char rest[247];
};
_Static_assert(sizeof(struct header) == BLOCK_BYTES, "a header is a block");

/* The path of a directory, with a slash at its end: its number, below those of its parents. */
static void directory_path(int number, char path[64]) {
    char parents[64] = "";
    char own[80];
    if (number > 0) directory_path((number - 1) / CHILDREN_MAX, parents);
    (void)snprintf(own, sizeof own, "%sd%d/", parents, number);
    memcpy(path, own, 64);
    path[63] = '\0';
}

static void header_write(FILE *to, const char *name, char kind, int64_t size) {
    struct header header = {.kind = kind, .magic = "ustar", .version = {'0', '0'}};
    (void)snprintf(header.name, sizeof header.name, "%s", name);
    (void)snprintf(header.mode, sizeof header.mode, "%07o", kind == '5' ? 0755u : 0644u);
    (void)snprintf(header.user, sizeof header.user, "%07o", 0u);
    (void)snprintf(header.group, sizeof header.group, "%07o", 0u);
    (void)snprintf(header.size, sizeof header.size, "%011llo", (unsigned long long)size);
    (void)snprintf(header.time, sizeof header.time, "%011llo", 1033430400ULL); /* 1 October 2002. */
    memset(header.sum, ' ', sizeof header.sum);
    unsigned sum = 0;
    const unsigned char *bytes = (const unsigned char *)&header;
    for (size_t i = 0; i < sizeof header; i++) {
        sum += bytes[i];
    }
    (void)snprintf(header.sum, sizeof header.sum, "%06o", sum);
    (void)fwrite(&header, sizeof header, 1, to);
}

/* The next of a row of numbers without pattern, the same ones in each run. */
static uint64_t next(uint64_t *state) {
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 33;
}

static void contents_write(FILE *to, uint64_t *state, int64_t size) {
    char block[BLOCK_BYTES];
    for (int64_t done = 0; done < size; done += BLOCK_BYTES) {
        memset(block, 0, sizeof block);
        for (int i = 0; i < BLOCK_BYTES && done + i < size; i++) {
            block[i] = (char)('a' + next(state) % 26);
        }
        (void)fwrite(block, sizeof block, 1, to);
    }
}

/* Most files small, some large: the fourth power of a weight is its share. */
static void sizes_make(int64_t sizes[ARCHIVE_FILES]) {
    uint64_t state = 2;
    int64_t weights = 0;
    int64_t given = 0;
    for (int i = 0; i < ARCHIVE_FILES; i++) {
        const int64_t weight = (int64_t)(next(&state) % WEIGHTS);
        sizes[i] = weight * weight * weight * weight;
        weights += sizes[i];
    }
    for (int i = 0; i < ARCHIVE_FILES; i++) {
        sizes[i] = ARCHIVE_BYTES * sizes[i] / weights;
        given += sizes[i];
    }
    sizes[0] += ARCHIVE_BYTES - given;
}

void archive_write(int handle, const char *path) {
    int64_t *sizes = calloc(ARCHIVE_FILES, sizeof *sizes);
    FILE *to = fdopen(handle, "w");
    if (sizes == NULL || to == NULL) {
        fail("no memory for the archive");
        free(sizes);
        if (to == NULL) {
            (void)close(handle);
        } else {
            (void)fclose(to);
        }
        return;
    }
    sizes_make(sizes);
    uint64_t state = 1;
    char directory[64];
    char name[100];
    for (int i = 0; i < ARCHIVE_DIRECTORIES; i++) {
        directory_path(i, directory);
        header_write(to, directory, '5', 0);
    }
    for (int i = 0; i < ARCHIVE_FILES; i++) {
        directory_path(i % ARCHIVE_DIRECTORIES, directory);
        (void)snprintf(name, sizeof name, "%sf%d", directory, i);
        header_write(to, name, '0', sizes[i]);
        contents_write(to, &state, sizes[i]);
    }
    /* The end: two empty blocks. */
    const char empty[2 * BLOCK_BYTES] = {0};
    (void)fwrite(empty, sizeof empty, 1, to);
    const bool is_good = !ferror(to);
    if (fclose(to) != 0 || !is_good) fail("cannot write the archive %s: %s", path, strerror(errno));
    free(sizes);
}
