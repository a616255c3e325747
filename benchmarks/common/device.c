#define _GNU_SOURCE
#include "device.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "job.h"

/* Blocks of raw (character) devices, and of files that stand in for devices. */
enum { RAW_BLOCK_BYTES = 512 };

static bool device_look(const char *path, struct device *device) {
    struct stat status;
    const int file = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (file < 0 || fstat(file, &status) != 0) {
        fail("device %s: %s", path, strerror(errno));
        if (file >= 0) (void)close(file);
        return false;
    }
    *device = (struct device){
        .node = status.st_dev,
        .inode = status.st_ino,
        .bytes = -1,
        .block_bytes = RAW_BLOCK_BYTES,
    };
    bool is_good = true;
    if (S_ISBLK(status.st_mode)) {
        int sector = 0;
        uint64_t bytes = 0;
        is_good = ioctl(file, BLKSSZGET, &sector) == 0 && ioctl(file, BLKGETSIZE64, &bytes) == 0;
        if (!is_good) fail("device %s: cannot ask for its size: %s", path, strerror(errno));
        device->block_bytes = sector;
        device->bytes = (int64_t)bytes;
        device->node = status.st_rdev;
        device->inode = 0;
    } else if (S_ISREG(status.st_mode)) {
        device->bytes = status.st_size;
    } else if (!S_ISCHR(status.st_mode)) {
        fail("%s is neither a device nor a file", path);
        is_good = false;
    }
    (void)close(file);
    return is_good;
}

bool devices_look(const char *const *paths, int count, struct device *devices, int64_t *block_bytes) {
    *block_bytes = 1;
    for (int i = 0; i < count; i++) {
        if (!device_look(paths[i], &devices[i])) return false;
        for (int other = 0; other < i; other++) {
            if (devices[other].node == devices[i].node && devices[other].inode == devices[i].inode) {
                fail("-R %s and -R %s are the same device", paths[other], paths[i]);
                return false;
            }
        }
        if (devices[i].block_bytes > *block_bytes) *block_bytes = devices[i].block_bytes;
    }
    return true;
}
