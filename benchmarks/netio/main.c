#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "../common/outcome.h"
#include "../common/program.h"
#include "netio.h"

/* Adds up the latencies of all in process 0. The longest and the shortest come with the results. */
static void latencies_collect(struct done *done, struct latency *own) {
    for (int kind = 0; kind < KIND_COUNT; kind++) {
        job_sum(own[kind].counts, BINS);
        job_sum(&own[kind].sum, 1);
        job_sum(&own[kind].sum_squares, 1);
    }
    if (job.rank != 0) return;
    for (int process = 0; process < job.count; process++) {
        for (int kind = 0; kind < KIND_COUNT; kind++) {
            const struct summary *of = &done->results[process].latencies[kind];
            if (of->longest > own[kind].longest) own[kind].longest = of->longest;
            if (of->count > 0 && (own[kind].shortest <= 0 || of->shortest < own[kind].shortest)) {
                own[kind].shortest = of->shortest;
            }
        }
    }
    memcpy(done->latencies, own, KIND_COUNT * sizeof *own);
}

static bool test_measure(struct run *run, int64_t size, int64_t write_percent) {
    static struct latency latencies[KIND_COUNT];
    struct done *done = &run->done[run->done_count];
    struct result own;
    *done = (struct done){.size = size, .write_percent = write_percent};
    if (job.rank == 0) {
        done->results = calloc((size_t)job.count, sizeof *done->results);
        done->latencies = calloc(KIND_COUNT, sizeof *done->latencies);
        if (done->results == NULL || done->latencies == NULL) fail("no memory for the results");
    }
    blocks_make(run, size);
    run->done_count++;
    if (!job_agree() || !test_run(run, size, write_percent, &own, latencies)) return false;
    job_gather((const double *)&own, RESULT_DOUBLES, (double *)done->results);
    latencies_collect(done, latencies);
    return true;
}

static bool tests_measure(struct run *run) {
    for (int size = 0; size < options.size_count; size++) {
        for (int percent = 0; percent < options.writes.count; percent++) {
            if (!test_measure(run, options.sizes[size], options.writes.values[percent])) return false;
        }
    }
    return true;
}

static void run_free(struct run *run) {
    for (int i = 0; i < run->done_count; i++) {
        free(run->done[i].results);
        free(run->done[i].latencies);
    }
    connections_end(run);
}

static int netio(int argc, char **argv) {
    static struct run run;
    struct outcome outcome = outcome_of(OPTION_ROWS, &options, argc, argv);
    run.servers = (int)options.servers;
    run.is_server = job.rank < run.servers;
    const bool is_good = outcome_begin(&outcome, options.report_base, options.json) && connections_make(&run) &&
                         tests_measure(&run);
    if (outcome_is_due(&outcome, is_good)) {
        report_write(outcome.report.file, &run, argc, argv);
        if (result_is_wanted(&outcome.result)) result_write(&outcome.result.json, &run);
        outcome_close(&outcome);
    }
    const int code = outcome_end(&outcome, is_good);
    run_free(&run);
    return code;
}

int main(int argc, char **argv) {
    static const struct program program = {
        .name = "netio",
        .help = HELP,
        .rows = OPTION_ROWS,
        .options = &options,
        .check = options_check,
        .run = netio,
    };
    return program_main(&program, argc, argv);
}
