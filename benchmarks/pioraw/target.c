#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "../common/cleaner.h"
#include "pioraw.h"

bool target_home(const struct bench *bench, int process, struct home *home) {
    const struct options *options = bench->options;
    int length = 0;
    *home = (struct home){.offset = 0};
    if (options->device_count > 0) {
        home->offset = process / options->device_count * options->file_bytes;
        length = snprintf(home->path, PATH_MAX, "%s", options->devices[process % options->device_count]);
    } else {
        length = snprintf(home->path, PATH_MAX, "%s/pioraw.%d", bench->place.directory, process);
    }
    if (length < PATH_MAX) return true;
    fail("the name of a file in %s would be too long", bench->place.directory);
    return false;
}

/* Whether the devices are large enough, and blocks are multiples of theirs. */
static bool devices_prepare(const struct options *options) {
    struct device devices[DEVICES_MAX];
    int64_t block_bytes = 1;
    if (devices_look(options->devices, options->device_count, devices, &block_bytes)) {
        const int64_t processes = numbers_largest(&options->processes);
        for (int i = 0; i < options->device_count; i++) {
            const int64_t shares = (processes - i + options->device_count - 1) / options->device_count;
            const int64_t end = shares * options->file_bytes;
            if (devices[i].bytes < 0 || end <= devices[i].bytes) continue;
            fail("device %s has %lld bytes, and the parts of the processes end at %lld", options->devices[i],
                 (long long)devices[i].bytes, (long long)end);
        }
        if (options->block_bytes % block_bytes != 0) {
            fail("-s: the block size must be a multiple of %lld, the blocks of the devices", (long long)block_bytes);
        }
    }
    return job_agree();
}

bool target_prepare(struct bench *bench) {
    const struct options *options = bench->options;
    bench->file = -1;
    if (options->device_count > 0) return devices_prepare(options);
    if (!place_prepare(&bench->place, options->directory, options->unique)) return false;
    struct home home;
    if (target_home(bench, job.rank, &home)) memcpy(bench->own.path, home.path, PATH_MAX);
    if (bench->place.made && !options->keep) cleaner_expect(bench->place.directory, LEFT_DIRECTORY);
    return job_agree();
}

bool target_make(struct bench *bench) {
    history_forget(bench);
    own_file_remove(&bench->own);
    if (bench->options->device_count == 0 && job.rank < bench->processes) {
        own_file_make(&bench->own, bench->options->keep);
    }
    return job_agree();
}

void target_open(struct bench *bench, int process, enum operation operation) {
    const struct options *options = bench->options;
    const bool is_reader = operation == OP_READ || operation == OP_CHECK;
    const struct open_how how = {.is_write = !is_reader, .direct = options->direct, .drop = options->drop};
    struct home home;
    if (target_home(bench, process, &home)) bench->file = file_open(home.path, how);
}

void target_close(struct bench *bench, bool is_written) {
    if (bench->file < 0) return;
    /* What is no file may have nothing to sync. */
    if (is_written && fsync(bench->file) != 0 && errno != EINVAL) {
        fail("cannot sync the file of process %d: %s", job.rank, strerror(errno));
    }
    if (close(bench->file) != 0) fail("cannot close the file of process %d: %s", job.rank, strerror(errno));
    bench->file = -1;
}

void target_remove(struct bench *bench) {
    if (bench->options->keep) return;
    own_file_remove(&bench->own);
    job_barrier();
    place_remove(&bench->place);
}
