#include "outcome.h"

#include <errno.h>
#include <string.h>

#include "cleaner.h"
#include "job.h"

struct outcome outcome_of(const struct option_row *rows, const void *options, int argc, char **argv) {
    return (struct outcome){.rows = rows, .options = options, .argc = argc, .argv = argv};
}

bool outcome_begin(struct outcome *outcome, const char *report_base, const char *json_path) {
    if (job.rank == 0) (void)report_open(&outcome->report, report_base);
    return job_agree() &&
           result_begin(&outcome->result, json_path, outcome->rows, outcome->options, outcome->argc, outcome->argv);
}

bool outcome_is_due(const struct outcome *outcome, bool is_good) {
    return is_good && outcome->report.file != NULL;
}

void outcome_close(struct outcome *outcome) {
    report_close(&outcome->report);
    /* Without a report there is no result: it is dropped at the end. */
    if (!job_should_stop()) result_close(&outcome->result);
}

int outcome_end(struct outcome *outcome, bool is_good) {
    /* Only if all went well so far: what failed has been said. */
    is_good = is_good && job_agree();
    if (!is_good) {
        report_drop(&outcome->report);
        result_drop(&outcome->result);
    }
    cleaner_forget();
    return is_good ? 0 : EXIT_RUN_FAILED;
}

int outcome_printed(void) {
    if (job.rank == 0 && (fflush(stdout) != 0 || ferror(stdout))) {
        fail("cannot write to standard output: %s", strerror(errno));
    }
    return job_agree() ? 0 : EXIT_RUN_FAILED;
}
