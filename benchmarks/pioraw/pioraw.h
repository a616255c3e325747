/*
 * pioraw: how much each process of a job reads and writes in a given time, each in its own file or part of a
 * device (gupfs-2002, Appendices A.3.4 and B.2, section 5.3).
 *
 *   options.c   the command line -> struct options
 *   target.c    files and devices: who works where; made, opened, removed
 *   pass.c      one test, and who wrote what for -C
 *   report.c    the tables and the JSON
 *   main.c      the order of all this
 */
#ifndef GUPFS_PIORAW_H
#define GUPFS_PIORAW_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "../common/crew.h"
#include "../common/device.h"
#include "../common/job.h"
#include "../common/options.h"
#include "../common/own_file.h"
#include "../common/pattern.h"
#include "../common/place.h"
#include "../common/result.h"
#include "../common/text.h"
#include "../common/transfer.h"

enum { OPERATION_COUNT = 2 };

/* What is measured, and what is done beside it. */
enum operation { OP_WRITE, OP_READ, OP_FILL, OP_CHECK };

const char *operation_name(enum operation operation);

struct options {
    struct numbers processes; /* PEs; none: all processes. */
    struct numbers blocks;    /* Of one read or write. */
    bool operations[OPERATION_COUNT];
    int64_t block_bytes;
    int64_t file_bytes;
    double seconds;           /* Of each test. */
    const char *devices[DEVICES_MAX];
    int device_count;
    bool direct;
    bool sync;
    bool drop; /* Ask the kernel to forget the files before each test. */
    bool check;
    bool keep;
    bool unique;
    bool plan;
    const char *directory;
    const char *report_base;
    const char *json;
};

/* What program.h wants to know. */
extern const char OPTIONS_HELP_TEXT[];
extern const struct option_row OPTION_ROWS[];
extern struct options pioraw_options;
/* `fail`s if options contradict one another or the number of processes. */
void options_check(void);

/* What one process did in a test. */
struct result {
    double bytes;
    double seconds; /* From its first operation to the end of its last one. */
    double user_seconds;
    double system_seconds;
};

/* A test that has been done. Process 0 has the results. */
struct pass {
    enum operation operation;
    int processes;
    int64_t blocks;
    struct result *results; /* Of each process that took part. */
};

/* What a pass wrote in the files of each process; all processes know it. */
struct written {
    int pass;           /* The number of its stamps. */
    double *begins;     /* Of each process. */
    double *ends;
};

struct bench {
    const struct options *options;
    struct place place;
    int processes;       /* That take part now. */
    int64_t blocks;      /* Of one operation, now. */
    int file;            /* Of this process; negative: none is open. */
    struct own_file own; /* Not with devices. */
    int writes;          /* Passes that wrote, in this job. */
    struct written *history; /* Since the files were made. */
    int history_count;
    struct records records;
    struct traces traces;
    struct pass *passes;
    int pass_count;
};

/* Where the file or the part of a device of a process is. */
struct home {
    char path[PATH_MAX];
    int64_t offset;
};
/* False: it has `fail`ed. */
bool target_home(const struct bench *bench, int process, struct home *home);

/* Collective: looks at devices or the directory. False: somebody has failed and has said so. */
bool target_prepare(struct bench *bench);
/* Collective: makes the files of the processes that take part, empty; the history begins anew. */
bool target_make(struct bench *bench);
/* Opens, syncs, closes what process `process` has. All `fail`. */
void target_open(struct bench *bench, int process, enum operation operation);
void target_close(struct bench *bench, bool is_written);
/* Collective: removes files and directory, unless they are to be kept. `fail`s. */
void target_remove(struct bench *bench);

/* Bytes of one operation, and of that part of a file that whole operations fill. */
int64_t operation_bytes(const struct bench *bench);
int64_t region_bytes(const struct bench *bench);

/* Collective: a test with bench->processes and bench->blocks. False: somebody has failed and has said so. */
bool pass_run(struct bench *bench, enum operation operation);
/* Forgets what was written. */
void history_forget(struct bench *bench);

/* All by process 0. */
void report_write(FILE *to, const struct bench *bench, int argc, char **argv);
void json_write(struct json *json, const struct bench *bench);
void plan_write(FILE *to, const struct bench *bench);

#endif
