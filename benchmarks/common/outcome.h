/*
 * What a run tells, from the first file to the exit code: the report, and the result of --json.
 *
 *   1. outcome_begin    all processes, when everything is prepared: makes the files
 *   2. outcome_is_due   process 0, when all went well: the program writes both,
 *   3. outcome_close    and they are complete
 *   4. outcome_end      all processes, when the program has removed what it made: the exit code
 *
 * Both appear whole or not at all, and neither if the run fails.
 */
#ifndef GUPFS_OUTCOME_H
#define GUPFS_OUTCOME_H

#include <stdbool.h>

#include "options.h"
#include "result.h"
#include "text.h"

struct outcome {
    struct report report;
    struct result_file result;
    const struct option_row *rows; /* The options, as the result names them. */
    const void *options;
    int argc; /* The command, as the report and the result tell it. */
    char **argv;
};

/* An outcome of which nothing is there yet. */
struct outcome outcome_of(const struct option_row *rows, const void *options, int argc, char **argv);

/*
 * Collective: opens the report of `report_base` (text.h) and begins the result `json_path` (result.h).
 * False: somebody has failed, here or before, and has said so.
 */
bool outcome_begin(struct outcome *outcome, const char *report_base, const char *json_path);

/* Whether this process shall write the outcome of a run that `is_good`. */
bool outcome_is_due(const struct outcome *outcome, bool is_good);

/* Completes the report and the result; `fail`s if they could not be written. */
void outcome_close(struct outcome *outcome);

/*
 * Collective: the end of a run that `is_good` or has said why it is not; what failed since then, the cleaning
 * up included, is said here. Nothing stays of an outcome that is none. Returns the exit code.
 */
int outcome_end(struct outcome *outcome, bool is_good);

/* Collective: the end of a program that printed something on standard output and did nothing else; the exit code. */
int outcome_printed(void);

#endif
