#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../common/outcome.h"
#include "../common/program.h"
#include "metabench.h"

static void directories_open(struct bench *bench) {
    const char *given = bench->options->directory;
    bench->start_handle = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (bench->start_handle < 0) {
        fail("cannot open the current directory: %s", strerror(errno));
        return;
    }
    if (realpath(given, bench->directory) == NULL) {
        fail("directory %s: %s", given, strerror(errno));
        return;
    }
    bench->work_handle = open(bench->directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (bench->work_handle < 0 || access(bench->directory, W_OK | X_OK) != 0) {
        fail("cannot work in %s: %s", bench->directory, strerror(errno));
    }
}

/* Who takes part, with how many files. */
static void shares_make(struct bench *bench) {
    const struct options *options = bench->options;
    const bool takes_zero = options->zero || job.count == 1;
    bench->participants = takes_zero ? job.count : job.count - 1;
    bench->place = takes_zero ? job.rank : job.rank - 1;
    bench->each = options->files / bench->participants;
    const bool is_shared = options->create || options->stat || options->utime || options->append;
    if (is_shared && bench->each == 0) {
        fail("-c %lld: fewer files than the %d processes that take part", (long long)options->files,
             bench->participants);
    }
}

static void memory_make(struct bench *bench) {
    const struct options *options = bench->options;
    const int64_t batches = (options->files + options->batch - 1) / options->batch;
    bench->batch_count = (int)batches;
    bench->batches = calloc((size_t)batches, sizeof *bench->batches);
    if (options->append) {
        bench->bytes = malloc((size_t)options->append_bytes);
        if (bench->bytes != NULL) memset(bench->bytes, 'a', (size_t)options->append_bytes);
    }
    if (bench->batches == NULL || (options->append && bench->bytes == NULL)) {
        fail("no memory for %lld batches and %lld bytes", (long long)batches, (long long)options->append_bytes);
    }
}

static bool tests_run(struct bench *bench) {
    for (int test = 0; test < TEST_COUNT; test++) {
        if (!test_is_wanted(bench->options, (enum test)test)) continue;
        if (!test_run(bench, (enum test)test)) return false;
    }
    return true;
}

static bool prepare_and_run(struct bench *bench, struct outcome *outcome) {
    directories_open(bench);
    shares_make(bench);
    if (!job_agree()) return false;
    memory_make(bench);
    if (!outcome_begin(outcome, bench->options->report_base, bench->options->json)) return false;
    if (bench->options->untar && !archive_prepare(bench)) return false;
    return tests_run(bench);
}

static int metabench(int argc, char **argv) {
    static struct bench bench;
    struct outcome outcome = outcome_of(OPTION_ROWS, &metabench_options, argc, argv);
    bench.options = &metabench_options;
    bool is_good = prepare_and_run(&bench, &outcome);
    if (outcome_is_due(&outcome, is_good)) {
        report_write(outcome.report.file, &bench, argc, argv);
        if (result_is_wanted(&outcome.result)) json_write(&outcome.result.json, &bench);
        outcome_close(&outcome);
    }
    archive_remove(&bench);
    /* A second time only if all went well so far: what failed has been said. */
    is_good = is_good && job_agree();
    if (!is_good && job.rank == 0) test_remove_all(&bench);
    return outcome_end(&outcome, is_good);
}

int main(int argc, char **argv) {
    static const struct program program = {
        .name = "metabench",
        .help = OPTIONS_HELP_TEXT,
        .rows = OPTION_ROWS,
        .options = &metabench_options,
        .check = options_check,
        .run = metabench,
    };
    return program_main(&program, argc, argv);
}
