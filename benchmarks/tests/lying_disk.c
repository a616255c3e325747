/*
 * A disk that lies, for tests: preloaded into a benchmark, it changes what is read from or written to one byte.
 *
 * LIE_FILE  part of the file's name       LIE_AT  offset of the byte
 * LIE       write: that byte is written wrong; read: it is read wrong; lose: writes that hold it are lost; stale:
 *           they are lost if the file reaches beyond it already
 */
#define _GNU_SOURCE
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Whether `bytes` where the file stands hold the byte; and its place in them. */
static bool is_hit(int file, size_t bytes, const char *lie, size_t *at) {
    char link[64];
    char path[PATH_MAX] = "";
    const char *asked = getenv("LIE");
    const char *name = getenv("LIE_FILE");
    const char *where = getenv("LIE_AT");
    if (asked == NULL || name == NULL || where == NULL || strcmp(asked, lie) != 0) return false;
    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    if (readlink(link, path, sizeof path - 1) < 0 || strstr(path, name) == NULL) return false;
    const long long place = lseek(file, 0, SEEK_CUR);
    const long long target = atoll(where);
    if (place < 0 || target < place || target >= place + (long long)bytes) return false;
    *at = (size_t)(target - place);
    return true;
}

ssize_t write(int file, const void *bytes, size_t size) {
    size_t at = 0;
    struct stat status;
    const bool is_stale = is_hit(file, size, "stale", &at) && fstat(file, &status) == 0 &&
                          lseek(file, 0, SEEK_CUR) + (off_t)at < status.st_size;
    if (is_stale || is_hit(file, size, "lose", &at)) return lseek(file, (off_t)size, SEEK_CUR) < 0 ? -1 : (ssize_t)size;
    if (!is_hit(file, size, "write", &at)) return syscall(SYS_write, file, bytes, size);
    /* Aligned, for direct I/O. */
    unsigned char *copy = aligned_alloc(4096, (size + 4095) / 4096 * 4096);
    memcpy(copy, bytes, size);
    copy[at] ^= 0x10;
    const ssize_t moved = syscall(SYS_write, file, copy, size);
    free(copy);
    return moved;
}

ssize_t read(int file, void *bytes, size_t size) {
    size_t at = 0;
    const bool hit = is_hit(file, size, "read", &at);
    const ssize_t moved = syscall(SYS_read, file, bytes, size);
    if (hit && moved > (ssize_t)at) ((unsigned char *)bytes)[at] ^= 0x10;
    return moved;
}
