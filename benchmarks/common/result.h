/*
 * --json: the whole result of a program as one JSON object.
 *
 *   { "program", "version", "started", "command": [...], "machine": {...}, "options": {...}, ... }
 *
 * What follows, "results" with raw times of all processes among it, the program writes itself.
 */
#ifndef GUPFS_RESULT_H
#define GUPFS_RESULT_H

#include <limits.h>

#include "json.h"
#include "options.h"

struct result_file {
    struct json json;
    char path[PATH_MAX];  /* Where it shall be in the end; empty: none was asked for. */
    char draft[PATH_MAX]; /* Where it grows. */
};

/*
 * Collective: begins the file `path` in process 0 and writes what precedes the results; nothing if `path` is
 * NULL. It grows in `path`.part, so that `path` appears whole or not at all; the cleaner removes the part if
 * the job dies. Options of own kinds are left to the program. False: somebody has failed and has said so.
 */
bool result_begin(struct result_file *result, const char *path, const struct option_row *rows, const void *options,
                  int argc, char **argv);

/* Whether this process writes: process 0, if it was asked for. */
bool result_is_wanted(const struct result_file *result);

/* Ends the object and moves it to its path; `fail`s if it could not be written. Harmless if there is none. */
void result_close(struct result_file *result);

/* Removes a result that will never be complete. Harmless if there is none. */
void result_drop(struct result_file *result);

#endif
