#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../common/cleaner.h"
#include "mptio.h"

/* Blocks of raw (character) devices, and of files that stand in for devices. */
enum { RAW_BLOCK_BYTES = 512 };

struct device {
    dev_t node;
    ino_t inode;
    int64_t bytes; /* Negative: unknown. */
    int64_t block_bytes;
};

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

/* Looks at all devices; the largest block of process 0 is everybody's. */
static bool devices_look(const struct options *options, struct device *devices, int64_t *block_bytes) {
    *block_bytes = 1;
    for (int i = 0; i < options->device_count; i++) {
        if (!device_look(options->devices[i], &devices[i])) return false;
        for (int other = 0; other < i; other++) {
            if (devices[other].node == devices[i].node && devices[other].inode == devices[i].inode) {
                fail("-R %s and -R %s are the same device", options->devices[other], options->devices[i]);
                return false;
            }
        }
        if (devices[i].block_bytes > *block_bytes) *block_bytes = devices[i].block_bytes;
    }
    return true;
}

bool target_plan(struct run *run) {
    const struct options *options = run->options;
    struct device devices[DEVICES_MAX];
    int64_t block_bytes = 1;
    if (devices_look(options, devices, &block_bytes)) {
        job_compare((unsigned long long)block_bytes, "the block size of the devices");
    } else {
        job_compare(0, "a device");
    }
    if (!job_agree()) return false;
    if (plan_make(&run->plan, options, job.count, block_bytes)) {
        for (int i = 0; i < options->device_count; i++) {
            if (devices[i].bytes < 0 || plan_end(&run->plan) <= devices[i].bytes) continue;
            fail("device %s has %lld bytes, and the regions end at %lld", options->devices[i],
                 (long long)devices[i].bytes, (long long)plan_end(&run->plan));
        }
    }
    return job_agree();
}

/* Where files are made: process 0 says where, and all look whether they have it. */
static bool directory_prepare(struct run *run) {
    const struct options *options = run->options;
    const char *form = options->unique ? "%s/mptio_XXXXXX" : "%s";
    if (job.rank == 0) {
        if (snprintf(run->directory, PATH_MAX, form, options->directory) >= PATH_MAX) {
            fail("the directory's name is too long");
        } else if (options->unique && mkdtemp(run->directory) == NULL) {
            fail("cannot make a directory in %s: %s", options->directory, strerror(errno));
        }
    }
    run->made_directory = options->unique && !job_should_stop();
    if (!job_agree()) {
        run->made_directory = false;
        return false;
    }
    job_broadcast(run->directory, PATH_MAX);
    struct stat status;
    if (stat(run->directory, &status) != 0) {
        fail("directory %s: %s", run->directory, strerror(errno));
    } else if (!S_ISDIR(status.st_mode)) {
        fail("%s is not a directory", run->directory);
    } else if (access(run->directory, W_OK | X_OK) != 0) {
        fail("cannot make files in %s: %s", run->directory, strerror(errno));
    }
    return job_agree();
}

/* The files whose home is this process. */
static void own_files_find(struct run *run) {
    const struct plan *plan = &run->plan;
    int count = plan->mode == MODE_THREAD ? plan->threads : 1;
    if (plan->mode == MODE_GLOBAL && job.rank != 0) count = 0;
    if (plan->mode == MODE_DEVICES || run->options->keep) count = 0;
    run->own_files = calloc((size_t)count + 1, sizeof *run->own_files);
    if (run->own_files == NULL) {
        fail("no memory for the names of %d files", count);
        return;
    }
    for (int thread = 0; thread < count; thread++) {
        const struct segment segment = plan_segment(plan, job.rank, thread, 0);
        if (!target_path(run, &segment, run->own_files[thread])) return;
        cleaner_expect(run->own_files[thread], LEFT_FILE);
    }
    run->own_count = count;
    if (run->made_directory && !run->options->keep) {
        cleaner_expect(run->directory, LEFT_DIRECTORY);
    }
}

bool target_prepare(struct run *run) {
    if (run->plan.mode != MODE_DEVICES && !directory_prepare(run)) return false;
    own_files_find(run);
    return job_agree();
}

bool target_path(const struct run *run, const struct segment *segment, char path[PATH_MAX]) {
    const char *directory = run->directory;
    const long long file = segment->file;
    int length = 0;
    switch (run->plan.mode) {
    case MODE_GLOBAL: length = snprintf(path, PATH_MAX, "%s/File", directory); break;
    case MODE_PROCESS: length = snprintf(path, PATH_MAX, "%s/File_%lld", directory, file); break;
    case MODE_THREAD:
        length = snprintf(path, PATH_MAX, "%s/File_%d_%d", directory, segment->home_process,
                          segment->home_thread);
        break;
    case MODE_DEVICES:
        length = snprintf(path, PATH_MAX, "%s", run->options->devices[file]);
        break;
    }
    if (length < PATH_MAX) return true;
    fail("the name of a file in %s would be too long", directory);
    return false;
}

void target_remove(struct run *run) {
    for (int i = 0; run->touched && i < run->own_count; i++) {
        if (unlink(run->own_files[i]) != 0 && errno != ENOENT) {
            fail("cannot remove %s: %s", run->own_files[i], strerror(errno));
        }
    }
    job_barrier();
    if (job.rank == 0 && run->made_directory && !run->options->keep && rmdir(run->directory) != 0) {
        fail("cannot remove the directory %s: %s", run->directory, strerror(errno));
    }
    cleaner_forget();
    free(run->own_files);
    run->own_files = NULL;
}

int segment_open(struct run *run, const struct segment *segment, int thread, int flags) {
    char path[PATH_MAX];
    if (!target_path(run, segment, path)) return -1;
    int file = -1;
    if (run->options->direct) {
        file = open(path, flags | O_DIRECT | O_CLOEXEC, 0666);
        if (file < 0 && errno == EINVAL) atomic_store(&run->direct_refused, true);
    }
    if (!run->options->direct || (file < 0 && errno == EINVAL)) {
        file = open(path, flags | O_CLOEXEC, 0666);
    }
    if (file >= 0) return file;
    if (errno == ENOENT) {
        fail("thread %d: %s does not exist, and test 0, which makes the files, is skipped", thread, path);
    } else {
        fail("thread %d: cannot open %s: %s", thread, path, strerror(errno));
    }
    return -1;
}
