#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../common/cleaner.h"
#include "mptio.h"

bool target_plan(struct run *run) {
    const struct options *options = run->options;
    struct device devices[DEVICES_MAX];
    int64_t block_bytes = 1;
    if (devices_look(options->devices, options->device_count, devices, &block_bytes)) {
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
    if (run->place.made && !run->options->keep) {
        cleaner_expect(run->place.directory, LEFT_DIRECTORY);
    }
}

bool target_prepare(struct run *run) {
    if (run->plan.mode != MODE_DEVICES && !place_prepare(&run->place, run->options->directory, run->options->unique)) {
        return false;
    }
    own_files_find(run);
    return job_agree();
}

bool target_path(const struct run *run, const struct segment *segment, char path[PATH_MAX]) {
    const char *directory = run->place.directory;
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
    if (!run->options->keep) place_remove(&run->place);
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
