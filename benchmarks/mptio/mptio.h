/*
 * mptio: parallel, multi-threaded I/O of MPI processes on files or devices (gupfs-2002, Appendix A.1).
 *
 *   options.c   the command line -> struct options
 *   layout.c    options + devices -> struct plan: who works on which bytes of which file. No I/O.
 *   target.c    directories, devices, names of files; what is removed at the end
 *   worker.c    one process's threads: one test, from the gate to the last close
 *   check.c     -C: reads it back
 *   report.c    the tables
 *   main.c      the order of all this
 */
#ifndef GUPFS_MPTIO_H
#define GUPFS_MPTIO_H

#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "../common/crew.h"
#include "../common/device.h"
#include "../common/job.h"
#include "../common/json.h"
#include "../common/options.h"
#include "../common/pattern.h"
#include "../common/place.h"
#include "../common/text.h"
#include "../common/transfer.h"

enum { TEST_COUNT = 5, THREADS_MAX = 4096, PROCESSES_MAX = 1 << 24 };

enum test { SEQ_WRITE, READ_MODIFY_WRITE, RAND_WRITE, SEQ_READ, RAND_READ };

enum mode { MODE_GLOBAL, MODE_PROCESS, MODE_THREAD, MODE_DEVICES };

/* What the command line says, before any adjustment. */
struct options {
    enum mode mode;
    const char *devices[DEVICES_MAX];
    int device_count;
    int64_t process_bytes; /* -f; 0: -F is given. */
    int64_t global_bytes;  /* -F; 0: -f is given. */
    int64_t record_bytes;
    int64_t threads;
    int64_t random_count; /* -a; 0: as many as there are records. */
    int64_t offset;
    bool skip[TEST_COUNT];
    const char *report_base; /* NULL: standard output. */
    const char *json;        /* NULL: none. */
    const char *directory;
    bool unique;
    bool overlap_processes;
    bool overlap_threads;
    bool rotate;
    bool direct;
    bool keep;
    bool check;
    bool plan;
    bool mode_given;
};

/* What program.h wants to know. */
extern const char OPTIONS_HELP_TEXT[];
extern const struct option_row OPTION_ROWS[];
extern struct options mptio_options;
/* `fail`s if options contradict one another. */
void options_check(void);

/* Who works where; what all processes agree upon. */
struct plan {
    enum mode mode;
    int processes;
    int threads;       /* Of each process, adjusted to the devices. */
    int devices;       /* 1 without -R. */
    int64_t record_bytes;
    int64_t records;   /* Of each thread: numrec. */
    int64_t random_count;
    int64_t offset;
    bool overlap_processes;
    bool overlap_threads;
    bool rotate;
};

/*
 * A region of one file or device that a thread works on: plan.records records from `offset` on. Its home is
 * the process and thread that it is assigned to before any rotation.
 */
struct segment {
    int home_process;
    int home_thread;
    int64_t file; /* 0 with -G; process with -P; process * threads + thread with -T; device with -R. */
    int64_t offset;
};

/*
 * The arithmetic of A.1: threads, record size and offset adjusted to devices with blocks of `block_bytes` (1
 * for files), numrec to the file size. Calls `fail` and returns false if nothing fits.
 */
bool plan_make(struct plan *plan, const struct options *options, int processes, int64_t block_bytes);

/* Bytes that the regions of one process's threads have together: the file size of A.1, adjusted. */
int64_t plan_process_bytes(const struct plan *plan);

/* The segment of a thread after `rotations` rotations. */
struct segment plan_segment(const struct plan *plan, int process, int thread, int rotations);

/* The process that works after `rotations` rotations on segments whose home is `home_process`. */
int plan_worker(const struct plan *plan, int home_process, int rotations);

/* Threads of a process that share a device: all of them without -R. */
int plan_threads_per_device(const struct plan *plan);

/* First byte behind all regions on file or device `file`. */
int64_t plan_end(const struct plan *plan);

/* Operations of one thread in `test`. */
int64_t plan_operations(const struct plan *plan, enum test test);

/* Draws the records of a random test, the same ones for the same segment and test in every run. */
struct draws {
    uint64_t state;
    uint64_t records;
};
struct draws draws_begin(const struct plan *plan, const struct segment *segment, enum test test);
int64_t draws_next(struct draws *draws);

/* A test that has been done. Pass numbers count from 1 in the order in which tests are done. */
struct pass {
    enum test test;
    int rotations; /* That had been done when it ran. */
};

struct run {
    const struct options *options;
    struct plan plan;
    struct place place;       /* Where the files are: -d, or the unique one in it. */
    bool touched;             /* A test may have begun: files of ours may exist. */
    char (*own_files)[PATH_MAX]; /* Whose home is here: removed by us. */
    int own_count;
    struct pass passes[TEST_COUNT];
    int pass_count;
    int rotations;
    atomic_bool direct_refused; /* Here, by some file. */
    int direct_refused_count;   /* Process 0, at the end: in so many processes. */
    struct records records;   /* One for each thread. */
    struct traces traces;
};

/* What one test took in one process. */
struct result {
    double bytes;
    double seconds;        /* From the gate to the last close. */
    double system_seconds; /* Of the processor, all threads. */
    double elapsed;        /* From barrier to barrier. */
};

const char *test_name(enum test test);

/*
 * Looks at the devices and makes the plan; then looks at the directory, or makes the unique one. Both are
 * collective; false: somebody has failed and has said so.
 */
bool target_plan(struct run *run);
bool target_prepare(struct run *run);
/* The path of a segment's file; false and `fail` if it is too long. */
bool target_path(const struct run *run, const struct segment *segment, char path[PATH_MAX]);
/* Removes files and directory, unless they are to be kept; collective. `fail`s if it cannot. */
void target_remove(struct run *run);

/* Opens the file of a segment; falls back to the page cache where -I is refused. Negative: it has `fail`ed. */
int segment_open(struct run *run, const struct segment *segment, int thread, int flags);

/* Runs one test in all processes; collective. False: somebody failed and has said so. */
bool test_run(struct run *run, enum test test, struct result *result);

/*
 * Reads back all segments that this process has now and compares them; collective. False: somebody found
 * something else than it should be, and has said so.
 */
bool check_run(struct run *run);

/* The report; process 0. `results` holds those of all processes for each pass, one after another. */
void report_write(FILE *to, const struct run *run, const struct result *results, int argc, char **argv);

/* The same for --json, after what result.h writes. */
void json_write(struct json *json, const struct run *run, const struct result *results);

/* Who would work where, for --plan; process 0. */
void plan_write(FILE *to, const struct run *run);

#endif
