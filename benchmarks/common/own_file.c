#define _GNU_SOURCE
#include "own_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "cleaner.h"
#include "job.h"

void own_file_make(struct own_file *file, bool keep) {
    const int handle = open(file->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (handle < 0) {
        fail("cannot make %s: %s%s", file->path, strerror(errno), errno == EEXIST ? " (remove it, or use -U)" : "");
        return;
    }
    file->is_there = true;
    if (!file->is_known && !keep) cleaner_expect(file->path, LEFT_FILE);
    file->is_known = true;
    if (close(handle) != 0) fail("cannot make %s: %s", file->path, strerror(errno));
}

void own_file_remove(struct own_file *file) {
    if (!file->is_there) return;
    if (unlink(file->path) != 0 && errno != ENOENT) fail("cannot remove %s: %s", file->path, strerror(errno));
    file->is_there = false;
}

int file_open(const char *path, struct open_how how) {
    const int handle =
        open(path, (how.is_write ? O_WRONLY : O_RDONLY) | (how.direct ? O_DIRECT : 0) | O_CLOEXEC);
    if (handle < 0) {
        fail("cannot open %s%s: %s", path, how.direct ? " for direct I/O" : "", strerror(errno));
        return -1;
    }
    /* Raw devices have no pages. */
    const int error = how.drop ? posix_fadvise(handle, 0, 0, POSIX_FADV_DONTNEED) : 0;
    if (error == 0 || error == ESPIPE) return handle;
    fail("-F: cannot drop the pages of %s: %s", path, strerror(error));
    (void)close(handle);
    return -1;
}
