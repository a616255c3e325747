#define _GNU_SOURCE
#include <stdlib.h>

#include "../common/outcome.h"
#include "../common/program.h"
#include "gpfsio.h"

/* Most threads whose times process 0 keeps: 1 GiB of them. */
#define SPANS_MAX (1LL << 26)

static int operation_count(const struct options *options) {
    int count = 0;
    for (int i = 0; i < OPERATION_COUNT; i++) {
        count += options->operations[i];
    }
    return count;
}

/* Room for all passes; process 0. */
static void passes_make(struct bench *bench) {
    const struct options *options = bench->options;
    const int tests = operation_count(options) * (int)options->runs;
    int64_t threads = 0;
    for (int n = 0; n < options->nodes.count; n++) {
        for (int t = 0; t < options->threads.count; t++) {
            threads += options->nodes.values[n] * options->threads.values[t];
        }
    }
    if (threads > SPANS_MAX / tests) {
        fail("the times of %lld threads in %d tests are more than this program keeps", (long long)threads, tests);
        return;
    }
    bench->passes = calloc((size_t)tests * (size_t)options->nodes.count * (size_t)options->threads.count,
                           sizeof *bench->passes);
    if (bench->passes == NULL) fail("no memory for the tests");
}

/* A test that is measured. */
static bool measure(struct bench *bench, enum operation operation, int run) {
    struct pass *pass = job.rank == 0 ? &bench->passes[bench->pass_count] : NULL;
    if (operation == OP_WRITE && !files_make(bench)) return false;
    if (!pass_run(bench, operation, run, pass)) return false;
    bench->pass_count++;
    bench->is_filled = true;
    return operation == OP_READ || !bench->options->check || pass_run(bench, OP_CHECK, run, NULL);
}

static bool cell_run(struct bench *bench) {
    const struct options *options = bench->options;
    bench->is_filled = false;
    for (int run = 1; run <= options->runs; run++) {
        for (int operation = 0; operation < OPERATION_COUNT; operation++) {
            if (!options->operations[operation]) continue;
            if (operation != OP_WRITE && !bench->is_filled) {
                if (!files_make(bench) || !pass_run(bench, OP_FILL, run, NULL)) return false;
                if (options->check && !pass_run(bench, OP_CHECK, run, NULL)) return false;
                bench->is_filled = true;
            }
            if (!measure(bench, (enum operation)operation, run)) return false;
        }
    }
    return true;
}

/* Process 0: with --trim, the runs of a cell whose rates are highest and lowest do not count. */
static void trim(struct bench *bench) {
    for (int first = 0; first < bench->pass_count; first++) {
        struct pass *pass = &bench->passes[first];
        if (pass->run != 1) continue;
        struct pass *fast = pass;
        struct pass *slow = pass;
        for (int i = first; i < bench->pass_count; i++) {
            struct pass *other = &bench->passes[i];
            if (other->operation != pass->operation || other->cell.nodes != pass->cell.nodes ||
                other->cell.threads != pass->cell.threads) {
                continue;
            }
            if (other->seconds < fast->seconds) fast = other;
            /* The last of equals: never the same run as the fastest. */
            if (other->seconds >= slow->seconds) slow = other;
        }
        fast->counts = false;
        slow->counts = false;
    }
}

static bool cells_run(struct bench *bench) {
    const struct options *options = bench->options;
    for (int n = 0; n < options->nodes.count; n++) {
        for (int t = 0; t < options->threads.count; t++) {
            bench->cell = (struct cell){(int)options->nodes.values[n], (int)options->threads.values[t]};
            if (!cell_run(bench)) return false;
        }
    }
    if (job.rank == 0 && options->trim) trim(bench);
    return true;
}

static bool prepare_and_run(struct bench *bench, struct outcome *outcome) {
    const struct options *options = bench->options;
    const int threads = (int)numbers_largest(&options->threads);
    if (!place_prepare(&bench->place, options->directory, options->unique)) return false;
    if (job.rank == 0) passes_make(bench);
    cpu_prepare(options);
    records_make(&bench->records, threads, options->record_bytes);
    traces_open(&bench->traces, "GPFSIO_TRACE", threads);
    files_prepare(bench, threads);
    return outcome_begin(outcome, options->report_base, options->json) && cells_run(bench);
}

static int plan_show(struct bench *bench) {
    (void)snprintf(bench->place.directory, PATH_MAX, "%s", bench->options->directory);
    if (job.rank == 0) {
        plan_write(stdout, bench);
    }
    return outcome_printed();
}

static int gpfsio(int argc, char **argv) {
    static struct bench bench;
    struct outcome outcome = outcome_of(OPTION_ROWS, &gpfsio_options, argc, argv);
    bench.options = &gpfsio_options;
    if (gpfsio_options.plan) return plan_show(&bench);
    const bool is_good = prepare_and_run(&bench, &outcome);
    if (outcome_is_due(&outcome, is_good)) {
        report_write(outcome.report.file, &bench, argc, argv);
        if (result_is_wanted(&outcome.result)) json_write(&outcome.result.json, &bench);
        outcome_close(&outcome);
    }
    traces_close(&bench.traces);
    files_remove(&bench);
    const int code = outcome_end(&outcome, is_good);
    for (int i = 0; i < bench.pass_count && job.rank == 0; i++) {
        free(bench.passes[i].spans);
        free(bench.passes[i].nodes);
    }
    free(bench.passes);
    free(bench.records.memory);
    return code;
}

int main(int argc, char **argv) {
    static const struct program program = {
        .name = "gpfsio",
        .help = OPTIONS_HELP_TEXT,
        .rows = OPTION_ROWS,
        .options = &gpfsio_options,
        .check = options_check,
        .run = gpfsio,
    };
    return program_main(&program, argc, argv);
}
