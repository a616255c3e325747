#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../common/cleaner.h"
#include "gpfsio.h"

bool files_path(const struct bench *bench, const struct region *region, char path[PATH_MAX]) {
    const int length =
        bench->options->separate
            ? snprintf(path, PATH_MAX, "%s/gpfsio.%d.%d", bench->place.directory, region->home_process,
                       region->home_thread)
            : snprintf(path, PATH_MAX, "%s/gpfsio.data", bench->place.directory);
    if (length < PATH_MAX) return true;
    fail("the name of a file in %s would be too long", bench->place.directory);
    return false;
}

void files_prepare(struct bench *bench, int threads_most) {
    const bool is_separate = bench->options->separate;
    const int count = is_separate ? threads_most : job.rank == 0 ? 1 : 0;
    bench->own = calloc((size_t)count + 1, sizeof *bench->own);
    bench->files = malloc((size_t)threads_most * sizeof *bench->files);
    if (bench->own == NULL || bench->files == NULL) {
        fail("no memory for %d files", threads_most);
        return;
    }
    memset(bench->files, -1, (size_t)threads_most * sizeof *bench->files);
    for (int i = 0; i < count; i++) {
        const struct region region = {.home_process = job.rank, .home_thread = i};
        if (!files_path(bench, &region, bench->own[i].path)) return;
    }
    bench->own_count = count;
    if (bench->place.made && !bench->options->keep) cleaner_expect(bench->place.directory, LEFT_DIRECTORY);
}

static void own_remove(struct bench *bench) {
    for (int i = 0; i < bench->own_count; i++) {
        own_file_remove(&bench->own[i]);
    }
}

bool files_make(struct bench *bench) {
    own_remove(bench);
    const bool takes_part = cell_has(bench->cell, job.rank);
    const int count = !takes_part ? 0 : bench->options->separate ? bench->cell.threads : bench->own_count;
    for (int i = 0; i < count && !job_should_stop(); i++) {
        own_file_make(&bench->own[i], bench->options->keep);
    }
    return job_agree();
}

void files_open(struct bench *bench, enum operation operation) {
    const struct options *options = bench->options;
    const bool is_reader = operation == OP_READ || operation == OP_CHECK;
    const struct open_how how = {.is_write = !is_reader, .direct = options->direct, .drop = options->drop};
    const bool is_rotated = layout_is_rotated(options, operation);
    for (int i = 0; cell_has(bench->cell, job.rank) && i < bench->cell.threads; i++) {
        const struct region region = layout_region(options, bench->cell, job.rank, i, is_rotated);
        char path[PATH_MAX];
        if (!files_path(bench, &region, path)) return;
        /* Only clean pages are dropped: writers have synced. */
        bench->files[i] = file_open(path, how);
        if (bench->files[i] < 0) return;
    }
}

void files_sync(struct bench *bench) {
    const int count = bench->options->separate ? bench->cell.threads : 1;
    for (int i = 0; cell_has(bench->cell, job.rank) && i < count; i++) {
        if (bench->files[i] < 0 || fsync(bench->files[i]) == 0) continue;
        fail("cannot sync the file of thread %d: %s", i, strerror(errno));
    }
}

void files_close(struct bench *bench) {
    for (int i = 0; cell_has(bench->cell, job.rank) && i < bench->cell.threads; i++) {
        if (bench->files[i] < 0) continue;
        if (close(bench->files[i]) != 0) fail("cannot close the file of thread %d: %s", i, strerror(errno));
        bench->files[i] = -1;
    }
}

void files_remove(struct bench *bench) {
    if (!bench->options->keep) {
        own_remove(bench);
        job_barrier();
        place_remove(&bench->place);
    }
    free(bench->own);
    free(bench->files);
}
