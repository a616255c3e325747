#define _GNU_SOURCE
#include <stdlib.h>

#include "../common/program.h"
#include "mptio.h"

/* Gathers what a pass took; on process 0, in the row of the pass. */
static void gather(const struct run *run, const struct result *own, struct result *results) {
    struct result *row = job.rank == 0 ? results + (size_t)(run->pass_count - 1) * (size_t)job.count : NULL;
    _Static_assert(sizeof *own == 4 * sizeof(double), "a result is four doubles");
    job_gather((const double *)own, 4, (double *)row);
}

/* The tests one after another. False: somebody failed and has said so. */
static bool tests_run(struct run *run, struct result *results) {
    const struct options *options = run->options;
    run->touched = true;
    if (options->check && options->skip[SEQ_WRITE] && !check_run(run)) return false;
    for (int test = 0; test < TEST_COUNT; test++) {
        if (options->skip[test]) continue;
        struct result own;
        if (!test_run(run, (enum test)test, &own)) return false;
        gather(run, &own, results);
        if (options->rotate) run->rotations++;
        if (options->check && !check_run(run)) return false;
    }
    return true;
}

static bool report_make(struct report *report, const struct run *run, const struct result *results, int argc,
                        char **argv) {
    /* False: somebody has failed and has said so; what fails on the way to the disk is found later. */
    const double own = atomic_load(&run->direct_refused) ? 1 : 0;
    double *refused = job.rank == 0 ? calloc((size_t)job.count, sizeof *refused) : NULL;
    int count = 0;
    if (job.rank == 0 && refused == NULL) fail("no memory for the report");
    if (!job_agree()) return false;
    job_gather(&own, 1, refused);
    if (job.rank != 0) return true;
    for (int i = 0; i < job.count; i++) {
        count += refused[i] > 0;
    }
    free(refused);
    report_write(report, run, results, argc, argv, count);
    report_close(report);
    return true;
}

/* From the plan to the last test, in this order, as long as all agree. */
static bool prepare_and_run(struct run *run, struct report *report, struct result **results) {
    if (!target_plan(run)) return false;
    if (job.rank == 0) {
        *results = calloc((size_t)TEST_COUNT * (size_t)job.count, sizeof **results);
        if (*results == NULL) fail("no memory for the results of %d processes", job.count);
        (void)report_open(report, run->options->report_base);
    }
    records_make(&run->records, run->plan.threads, run->plan.record_bytes);
    traces_open(&run->traces, "MPTIO_TRACE", run->plan.threads);
    return job_agree() && target_prepare(run) && tests_run(run, *results);
}

/* --plan: nothing is made, not even the unique directory. */
static int plan_show(struct run *run) {
    if (!target_plan(run)) return EXIT_RUN_FAILED;
    if (job.rank == 0) {
        (void)snprintf(run->place.directory, PATH_MAX, "%s", run->options->directory);
        plan_write(stdout, run);
        if (fflush(stdout) != 0) fail("cannot write the plan");
    }
    return job_agree() ? 0 : EXIT_RUN_FAILED;
}

static int mptio(int argc, char **argv) {
    static struct run run;
    static struct report report;
    struct result *results = NULL;
    run.options = &mptio_options;
    if (mptio_options.plan) return plan_show(&run);
    bool is_good = prepare_and_run(&run, &report, &results);
    is_good = is_good && report_make(&report, &run, results, argc, argv);
    traces_close(&run.traces);
    target_remove(&run);
    /* A second time only if all went well so far: what failed has been said. */
    is_good = is_good && job_agree();
    if (!is_good) report_drop(&report);
    free(results);
    free(run.records.memory);
    return is_good ? 0 : EXIT_RUN_FAILED;
}

int main(int argc, char **argv) {
    static const struct program program = {
        .name = "mptio",
        .help = OPTIONS_HELP_TEXT,
        .rows = OPTION_ROWS,
        .options = &mptio_options,
        .check = options_check,
        .run = mptio,
    };
    return program_main(&program, argc, argv);
}
