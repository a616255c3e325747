#define _GNU_SOURCE
#include <stdlib.h>

#include "../common/outcome.h"
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

/* Collective: process 0 hears how many processes O_DIRECT was refused to. False: somebody has failed. */
static bool refusals_count(struct run *run) {
    const double own = atomic_load(&run->direct_refused) ? 1 : 0;
    double count = own;
    if (!job_agree()) return false;
    job_sum(&count, 1);
    run->direct_refused_count = (int)count;
    return true;
}

/* From the plan to the last test, in this order, as long as all agree. */
static bool prepare_and_run(struct run *run, struct outcome *outcome, struct result **results) {
    const struct options *options = run->options;
    if (!target_plan(run)) return false;
    if (job.rank == 0) {
        *results = calloc((size_t)TEST_COUNT * (size_t)job.count, sizeof **results);
        if (*results == NULL) fail("no memory for the results of %d processes", job.count);
    }
    records_make(&run->records, run->plan.threads, run->plan.record_bytes);
    traces_open(&run->traces, "MPTIO_TRACE", run->plan.threads);
    return outcome_begin(outcome, options->report_base, options->json) && target_prepare(run) &&
           tests_run(run, *results) && refusals_count(run);
}

/* --plan: nothing is made, not even the unique directory. */
static int plan_show(struct run *run) {
    if (!target_plan(run)) return EXIT_RUN_FAILED;
    if (job.rank == 0) {
        (void)snprintf(run->place.directory, PATH_MAX, "%s", run->options->directory);
        plan_write(stdout, run);
    }
    return outcome_printed();
}

static int mptio(int argc, char **argv) {
    static struct run run;
    struct outcome outcome = outcome_of(OPTION_ROWS, &mptio_options, argc, argv);
    struct result *results = NULL;
    run.options = &mptio_options;
    if (mptio_options.plan) return plan_show(&run);
    const bool is_good = prepare_and_run(&run, &outcome, &results);
    if (outcome_is_due(&outcome, is_good)) {
        report_write(outcome.report.file, &run, results, argc, argv);
        if (result_is_wanted(&outcome.result)) json_write(&outcome.result.json, &run, results);
        outcome_close(&outcome);
    }
    traces_close(&run.traces);
    target_remove(&run);
    const int code = outcome_end(&outcome, is_good);
    free(results);
    free(run.records.memory);
    return code;
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
