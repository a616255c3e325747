/*
 * What the main of each program does: joins the job, reads the command line, says what is wrong with it or
 * what --help asks for, runs, leaves.
 */
#ifndef GUPFS_PROGRAM_H
#define GUPFS_PROGRAM_H

#include "options.h"

struct program {
    const char *name;
    const char *help;              /* What --help prints. */
    const struct option_row *rows; /* The options. */
    void *options;                 /* Where they go; holds the defaults. */
    void (*check)(void);           /* `fail`s if options contradict one another; NULL: they cannot. */
    int (*run)(int argc, char **argv); /* Collective; returns the exit code of this process. */
};

/* The whole of main. */
int program_main(const struct program *program, int argc, char **argv);

/* The version of this release. */
extern const char PROGRAM_VERSION[];

#endif
