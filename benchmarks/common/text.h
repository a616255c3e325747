/*
 * Numbers of the command line, and the file that a report goes to.
 */
#ifndef GUPFS_TEXT_H
#define GUPFS_TEXT_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/*
 * Reads a size: digits, then nothing or one of K, M and G (2^10, 2^20, 2^30; small letters mean the same).
 * False: it is none, or does not fit into an int64_t.
 */
bool parse_size(const char *text, int64_t *size);

/* Reads a whole number of `least` to `most`. */
bool parse_number(const char *text, int64_t least, int64_t most, int64_t *number);

/* Where the report goes: standard output, or a file that appears whole or not at all. */
struct report {
    FILE *file;
    char path[PATH_MAX]; /* Empty: standard output. */
};

/*
 * Opens the report: standard output if `base` is NULL, else base_YYYYMMDD_HHMMSS, which must not exist yet.
 * Calls `fail` and returns false if it cannot.
 * The cleaner removes it if the job dies.
 */
bool report_open(struct report *report, const char *base);

/* The line that tells the command. */
void report_command(FILE *to, int argc, char **argv);

/* Closes a report that is complete; `fail`s if it could not be written. */
void report_close(struct report *report);

/* Closes and removes a report that will never be complete. Harmless if none is open. */
void report_drop(struct report *report);

#endif
