/*
 * gpfsio: sequential reads and writes of many threads of many nodes on one shared file (gpfs-1.4, 'Benchmark'
 * and Appendices B and C).
 *
 *   options.c   the command line -> struct options
 *   layout.c    who works on which bytes of which file. No I/O.
 *   files.c     the files: made, opened, removed
 *   pass.c      one test of one cell, from the comparison of the clocks to the gathered times
 *   cpu.c       what nodes and servers took of the processors
 *   report.c    the tables;  json.c  the file of --json
 *   main.c      the order of all this
 */
#ifndef GUPFS_GPFSIO_H
#define GUPFS_GPFSIO_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "../common/clock.h"
#include "../common/crew.h"
#include "../common/job.h"
#include "../common/options.h"
#include "../common/own_file.h"
#include "../common/pattern.h"
#include "../common/place.h"
#include "../common/result.h"
#include "../common/text.h"
#include "../common/transfer.h"

enum { THREADS_MAX = 4096, RUNS_MAX = 1000, SERVERS_MAX = 16, OPERATION_COUNT = 3 };

/* What is measured, in this order, and what is done beside it. */
enum operation { OP_WRITE, OP_REWRITE, OP_READ, OP_FILL, OP_CHECK };

const char *operation_name(enum operation operation);

/* A server whose processor time is counted. */
struct server {
    const char *what; /* A pid or a file that holds one; empty: only its node is looked at. */
    int process;      /* Of this job, on the server's node. */
};

struct options {
    struct numbers nodes;   /* None: all processes. */
    struct numbers threads; /* Of each node. */
    bool operations[OPERATION_COUNT];
    int64_t records;        /* Of each thread. */
    int64_t record_bytes;
    int64_t runs;
    bool trim;              /* The best and the worst run do not count. */
    bool strided;
    bool separate;          /* A file for each thread. */
    bool rotate;
    bool direct;
    bool sync;
    bool drop;              /* Ask the kernel to forget the files before each test. */
    bool check;
    bool keep;
    bool unique;
    bool plan;
    const char *directory;
    const char *report_base;
    const char *json;
    struct server servers[SERVERS_MAX];
    int server_count;
};

/* What program.h wants to know. */
extern const char OPTIONS_HELP_TEXT[];
extern const struct option_row OPTION_ROWS[];
extern struct options gpfsio_options;
/* `fail`s if options contradict one another or the number of processes. */
void options_check(void);

/* A cell of a table: so many nodes with so many threads each. */
struct cell {
    int nodes;
    int threads;
};

/* Where a thread works: `records` records from `offset` on, `step` bytes from one to the next. */
struct region {
    int home_process; /* Whose it is when it is written. */
    int home_thread;
    int64_t file;     /* 0; with separate files process * threads + thread. */
    int64_t offset;
    int64_t step;
};

/* With `is_rotated` it is the region that the node before this one wrote. */
struct region layout_region(const struct options *options, struct cell cell, int process, int thread,
                            bool is_rotated);
/* Whether `operation` works on what the node before wrote. */
bool layout_is_rotated(const struct options *options, enum operation operation);
/* Bytes of one thread. */
int64_t layout_bytes(const struct options *options);

/* What a node took of its processors; seconds of all of them together. */
struct node_cpu {
    double user;
    double system;
    double total; /* Idle time, too. */
};

/* What a server took. */
struct server_cpu {
    double user;    /* Of the process; 0 if there is none. */
    double system;
    double elapsed;
    struct node_cpu node;
};

/* How things stand at some time, on this node. */
struct cpu_state {
    struct node_cpu node;
    double time;
    struct cpu_seconds processes[SERVERS_MAX]; /* Those servers that are looked at here. */
};

/* Finds the servers that are to be looked at here; `fail`s. */
void cpu_prepare(const struct options *options);
/* `fail`s if a server is gone. */
void cpu_look(const struct options *options, struct cpu_state *state);
struct node_cpu node_cpu_between(const struct cpu_state *begin, const struct cpu_state *end);
struct server_cpu server_cpu_between(const struct cpu_state *begin, const struct cpu_state *end, int server);

/* What one process did in a pass. */
struct node_result {
    struct cpu_seconds process;
    struct node_cpu node;
    double clock_error;
};

/* The times of one thread, on the clock of process 0, counted from the first start of the pass. */
struct span {
    double begin;
    double end;
};

/* One test of one cell that has been done. Process 0 has the whole of it. */
struct pass {
    enum operation operation;
    struct cell cell;
    int run; /* From 1. */
    bool counts; /* For the mean. */
    double bytes;
    double seconds; /* From the first start to the last end. */
    double clock_error;
    struct span *spans; /* cell.threads of each node, one after another. */
    struct node_result *nodes; /* cell.nodes. */
    struct server_cpu servers[SERVERS_MAX];
};

struct bench {
    const struct options *options;
    struct place place;
    struct cell cell;
    bool is_filled;      /* The files hold what this cell reads. */
    int writes;          /* Passes that wrote, in this job. */
    int *files;          /* One for each thread of this process. */
    struct own_file *own; /* Those that this process makes and removes. */
    int own_count;
    struct records records;
    struct traces traces;
    struct pass *passes; /* Process 0. */
    int pass_count;
};

/* The path of a region's file; false and `fail` if it is too long. */
bool files_path(const struct bench *bench, const struct region *region, char path[PATH_MAX]);
/* Names the files that this process makes for any cell, and tells the cleaner. */
void files_prepare(struct bench *bench, int threads_most);
/* Collective: removes the files of the last cell and makes those of this one, empty. */
bool files_make(struct bench *bench);
/* Opens the files of this process's threads, syncs what they wrote, closes them. All `fail`. */
void files_open(struct bench *bench, enum operation operation);
void files_sync(struct bench *bench);
void files_close(struct bench *bench);
/* Collective: removes files and directory, unless they are to be kept. `fail`s. */
void files_remove(struct bench *bench);

/* Collective: runs a test of bench->cell; `pass` is NULL if it is not measured. False: it has been said why. */
bool pass_run(struct bench *bench, enum operation operation, int run, struct pass *pass);

/* Whether process `process` takes part in a cell. */
bool cell_has(struct cell cell, int process);

/* Megabytes (2^20) per second; 0 where the clock saw no time. */
double rate_of(double bytes, double seconds);
/* Percent of the processors of a node. */
struct shares {
    double user;
    double system;
};

/* What the runs of a cell that count have in common. */
struct mean {
    double rate;
    struct shares nodes;   /* The mean of the nodes that took part. */
    struct shares servers[SERVERS_MAX]; /* Of each server's node. */
};
struct mean mean_of(const struct bench *bench, enum operation operation, struct cell cell);
/* Of the nodes that took part in a pass. */
struct shares shares_of_nodes(const struct pass *pass);
struct shares shares_of(const struct node_cpu *cpu);

/* Both by process 0. */
void report_write(FILE *to, const struct bench *bench, int argc, char **argv);
void json_write(struct json *json, const struct bench *bench);
void plan_write(FILE *to, const struct bench *bench);

#endif
