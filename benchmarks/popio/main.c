#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../common/outcome.h"
#include "../common/program.h"
#include "popio.h"

static void data_make(struct run *run) {
    const int write = run->write_share.elements;
    const int read = run->read_share.elements;
    const size_t elements = (size_t)(write > read ? write : read);
    size_t bytes = 0;
    if (__builtin_mul_overflow(elements * sizeof *run->data, (size_t)options.arrays, &bytes) ||
        (run->data = malloc(bytes + 1)) == NULL) {
        fail("no memory for %lld arrays of %zu elements", (long long)options.arrays, elements);
    }
}

/* Collective. False: somebody has failed and has said so. */
static bool prepare(struct run *run) {
    if (realpath(options.directory, run->directory) == NULL) {
        fail("directory %s: %s", options.directory, strerror(errno));
    } else if (!options.only_read && access(run->directory, W_OK | X_OK) != 0) {
        fail("cannot work in %s: %s", run->directory, strerror(errno));
    }
    layout_make(&run->layout);
    if (!job_agree()) return false;
    run->read_process = options.shift ? (job.rank + 1) % job.count : job.rank;
    share_make(&run->write_share, &run->layout, job.rank);
    share_make(&run->read_share, &run->layout, run->read_process);
    data_make(run);
    methods_prepare(run);
    return job_agree();
}

static bool pass_run(struct run *run, enum method method, bool is_write, int iteration) {
    struct pass *pass = &run->passes[run->pass_count];
    struct result own;
    *pass = (struct pass){.method = method, .is_write = is_write, .iteration = iteration};
    if (job.rank == 0) {
        pass->results = calloc((size_t)job.count, sizeof *pass->results);
        if (pass->results == NULL) fail("no memory for the results of %d processes", job.count);
    }
    if (is_write) {
        share_fill(&run->write_share, run->data, iteration);
    } else {
        /* No numbers: what is not read is not right. */
        memset(run->data, 0xff, (size_t)run->read_share.elements * (size_t)options.arrays * sizeof *run->data);
    }
    if (!method_run(run, method, is_write, &own)) return false;
    if (!is_write) {
        char path[PATH_MAX];
        if (method_path(run, method, run->read_process, path)) {
            share_compare(&run->read_share, run->data, options.only_read ? 0 : iteration, method, run->read_process,
                          path);
        }
        if (!job_agree()) return false;
    }
    job_gather((const double *)&own, RESULT_DOUBLES, (double *)pass->results);
    run->pass_count++;
    return true;
}

/* One method, all iterations. */
static bool method_measure(struct run *run, enum method method) {
    for (int iteration = 0; iteration < options.iterations; iteration++) {
        if (!options.only_read && !pass_run(run, method, true, iteration)) return false;
        if (!options.only_write && !pass_run(run, method, false, iteration)) return false;
        if (options.keep && iteration + 1 == options.iterations) {
            run->exists[method] = false;
        } else {
            method_remove(run, method);
        }
        if (!job_agree()) return false;
    }
    return true;
}

static bool methods_measure(struct run *run) {
    for (int method = 0; method < METHOD_COUNT; method++) {
        if (options.methods[method] && !method_measure(run, (enum method)method)) return false;
    }
    return true;
}

static void run_free(struct run *run) {
    for (int i = 0; i < run->pass_count; i++) {
        free(run->passes[i].results);
    }
    methods_free(run);
    share_free(&run->write_share);
    share_free(&run->read_share);
    free(run->data);
}

static int popio(int argc, char **argv) {
    static struct run run = {.hints = MPI_INFO_NULL};
    struct outcome outcome = outcome_of(OPTION_ROWS, &options, argc, argv);
    const bool is_good =
        prepare(&run) && outcome_begin(&outcome, options.report_base, options.json) && methods_measure(&run);
    if (outcome_is_due(&outcome, is_good)) {
        report_write(outcome.report.file, &run, argc, argv);
        if (result_is_wanted(&outcome.result)) result_write(&outcome.result.json, &run);
        outcome_close(&outcome);
    }
    for (int method = 0; method < METHOD_COUNT && !options.keep; method++) {
        method_remove(&run, (enum method)method);
    }
    const int code = outcome_end(&outcome, is_good);
    run_free(&run);
    return code;
}

int main(int argc, char **argv) {
    static const struct program program = {
        .name = "popio",
        .help = HELP,
        .rows = OPTION_ROWS,
        .options = &options,
        .check = options_check,
        .run = popio,
    };
    return program_main(&program, argc, argv);
}
