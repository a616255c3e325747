/*
 * What the benchmark programs are measured against (`make cost`): the same system calls in the plainest loops,
 * in one process without MPI. Everything else, the names of files too, is made before the clock starts.
 *
 *   loops write FILE BYTES RECORD    makes FILE and writes records one after another
 *   loops read FILE BYTES RECORD     reads them
 *   loops create DIR COUNT           makes COUNT files: open and close
 *   loops stat DIR COUNT             stat of each of these
 *
 * Prints the seconds that the loop took, with the open and close of FILE in them.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { NAME_BYTES = 32, PAGE_BYTES = 4096 };

static void give_up(const char *what, const char *name) {
    (void)fprintf(stderr, "loops: cannot %s %s: %s\n", what, name, strerror(errno));
    exit(1);
}

static double now(void) {
    struct timespec time;
    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static double transfer(const char *path, int64_t bytes, size_t record, int is_write) {
    void *buffer = NULL;
    if (posix_memalign(&buffer, PAGE_BYTES, record) != 0) give_up("get memory for", path);
    /* Written before it is used, and not zeros. */
    memset(buffer, 0x5a, record);
    const double begin = now();
    const int file = open(path, is_write ? O_WRONLY | O_CREAT : O_RDONLY, 0666);
    if (file < 0) give_up("open", path);
    for (int64_t done = 0; done < bytes; done += (int64_t)record) {
        const ssize_t moved = is_write ? write(file, buffer, record) : read(file, buffer, record);
        if (moved != (ssize_t)record) give_up(is_write ? "write" : "read", path);
    }
    if (close(file) != 0) give_up("close", path);
    const double seconds = now() - begin;
    free(buffer);
    return seconds;
}

static char (*names_make(int64_t count))[NAME_BYTES] {
    char(*names)[NAME_BYTES] = calloc((size_t)count, sizeof *names);
    if (names == NULL) give_up("get memory for", "names");
    for (int64_t i = 0; i < count; i++) {
        (void)snprintf(names[i], NAME_BYTES, "f0.%lld", (long long)i);
    }
    return names;
}

static double create_all(char (*names)[NAME_BYTES], int64_t count) {
    const double begin = now();
    for (int64_t i = 0; i < count; i++) {
        const int file = open(names[i], O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (file < 0 || close(file) != 0) give_up("create", names[i]);
    }
    return now() - begin;
}

static double stat_all(char (*names)[NAME_BYTES], int64_t count) {
    struct stat status;
    const double begin = now();
    for (int64_t i = 0; i < count; i++) {
        if (stat(names[i], &status) != 0) give_up("stat", names[i]);
    }
    return now() - begin;
}

int main(int argc, char **argv) {
    const char *what = argc > 3 ? argv[1] : "";
    const int64_t count = argc > 3 ? strtoll(argv[3], NULL, 10) : 0;
    double seconds = 0;
    if (argc == 5 && (strcmp(what, "write") == 0 || strcmp(what, "read") == 0)) {
        const int64_t record = strtoll(argv[4], NULL, 10);
        if (record <= 0 || count % record != 0) {
            (void)fprintf(stderr, "loops: BYTES is no multiple of RECORD\n");
            return 2;
        }
        seconds = transfer(argv[2], count, (size_t)record, strcmp(what, "write") == 0);
    } else if (argc == 4 && (strcmp(what, "create") == 0 || strcmp(what, "stat") == 0)) {
        if (chdir(argv[2]) != 0) give_up("enter", argv[2]);
        char(*names)[NAME_BYTES] = names_make(count);
        seconds = strcmp(what, "create") == 0 ? create_all(names, count) : stat_all(names, count);
        free(names);
    } else {
        (void)fprintf(stderr, "usage: loops write|read FILE BYTES RECORD, loops create|stat DIR COUNT\n");
        return 2;
    }
    (void)printf("%.9f\n", seconds);
    return 0;
}
