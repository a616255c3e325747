#include <stdlib.h>

#include "../common/outcome.h"
#include "../common/program.h"
#include "pioraw.h"

static void memory_make(struct bench *bench) {
    const struct options *options = bench->options;
    const int sizes = options->blocks.count;
    records_make(&bench->records, 1, numbers_largest(&options->blocks) * options->block_bytes);
    /* Each write test and the filling. */
    bench->history = calloc((size_t)sizes + 1, sizeof *bench->history);
    bench->passes = calloc((size_t)OPERATION_COUNT * (size_t)sizes * (size_t)options->processes.count,
                           sizeof *bench->passes);
    if (bench->history == NULL || bench->passes == NULL) fail("no memory for the tests");
}

/* The tests of one operation, for all sizes. */
static bool sizes_run(struct bench *bench, enum operation operation) {
    const struct numbers *blocks = &bench->options->blocks;
    if (!bench->options->operations[operation]) return true;
    for (int i = 0; i < blocks->count; i++) {
        bench->blocks = blocks->values[i];
        if (!pass_run(bench, operation)) return false;
        if (operation == OP_WRITE && bench->options->check && !pass_run(bench, OP_CHECK)) return false;
    }
    return true;
}

/* What no test has written is written before the read tests; a device without write tests is left alone. */
static bool fill(struct bench *bench) {
    const struct options *options = bench->options;
    if (!options->operations[OP_READ] || (options->device_count > 0 && !options->operations[OP_WRITE])) return true;
    bench->blocks = options->blocks.values[options->blocks.count - 1];
    return pass_run(bench, OP_FILL) && (!options->check || pass_run(bench, OP_CHECK));
}

static bool prepare_and_run(struct bench *bench, struct outcome *outcome) {
    const struct options *options = bench->options;
    if (!target_prepare(bench)) return false;
    memory_make(bench);
    traces_open(&bench->traces, "PIORAW_TRACE", 1);
    if (!outcome_begin(outcome, options->report_base, options->json)) return false;
    for (int i = 0; i < options->processes.count; i++) {
        bench->processes = (int)options->processes.values[i];
        if (!target_make(bench) || !sizes_run(bench, OP_WRITE) || !fill(bench) || !sizes_run(bench, OP_READ)) {
            return false;
        }
    }
    return true;
}

static int plan_show(struct bench *bench) {
    (void)snprintf(bench->place.directory, PATH_MAX, "%s", bench->options->directory);
    if (job.rank == 0) {
        plan_write(stdout, bench);
    }
    return outcome_printed();
}

static void bench_free(struct bench *bench) {
    for (int i = 0; i < bench->pass_count; i++) {
        free(bench->passes[i].results);
    }
    history_forget(bench);
    free(bench->history);
    free(bench->passes);
    free(bench->records.memory);
}

static int pioraw(int argc, char **argv) {
    static struct bench bench;
    struct outcome outcome = outcome_of(OPTION_ROWS, &pioraw_options, argc, argv);
    bench.options = &pioraw_options;
    if (pioraw_options.plan) return plan_show(&bench);
    const bool is_good = prepare_and_run(&bench, &outcome);
    if (outcome_is_due(&outcome, is_good)) {
        report_write(outcome.report.file, &bench, argc, argv);
        if (result_is_wanted(&outcome.result)) json_write(&outcome.result.json, &bench);
        outcome_close(&outcome);
    }
    traces_close(&bench.traces);
    target_remove(&bench);
    const int code = outcome_end(&outcome, is_good);
    bench_free(&bench);
    return code;
}

int main(int argc, char **argv) {
    static const struct program program = {
        .name = "pioraw",
        .help = OPTIONS_HELP_TEXT,
        .rows = OPTION_ROWS,
        .options = &pioraw_options,
        .check = options_check,
        .run = pioraw,
    };
    return program_main(&program, argc, argv);
}
