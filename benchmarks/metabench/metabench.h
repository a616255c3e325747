/*
 * metabench: metadata operations of MPI processes (gupfs-2002, Appendix A.2).
 *
 *   options.c   the command line
 *   tests.c     each test: prepare, enter, work between two barriers, leave, clean up
 *   untar.c     the untar test's archive and its unpacking
 *   archive.c   writes an archive as large as the document's
 *   report.c    the tables
 *   main.c      the order of all this
 */
#ifndef GUPFS_METABENCH_H
#define GUPFS_METABENCH_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "../common/job.h"
#include "../common/json.h"
#include "../common/options.h"
#include "../common/text.h"

enum test {
    CREATE_A,
    CREATE_B,
    CREATE_C,
    STAT_A,
    STAT_B,
    UTIME_A,
    UTIME_B,
    APPEND_A,
    APPEND_B,
    UNTAR,
    TEST_COUNT
};

struct options {
    bool create;
    bool stat;
    bool utime;
    bool append;
    bool untar;
    bool cleanup;
    bool zero; /* Process 0 takes part. */
    int64_t files;
    int64_t append_bytes;
    int64_t batch;
    const char *report_base;
    const char *json;    /* NULL: none. */
    const char *directory;
    const char *archive; /* NULL: we make one. */
    const char *local;   /* Where we make it. */
};

/* What program.h wants to know. */
extern const char OPTIONS_HELP_TEXT[];
extern const struct option_row OPTION_ROWS[];
extern struct options metabench_options;
/* `fail`s if options contradict one another; fills in what depends on the environment. */
void options_check(void);
bool test_is_wanted(const struct options *options, enum test test);

/* What one process did in a test. */
struct result {
    double files;
    double seconds;
    double elapsed; /* From barrier to barrier. */
};

/* A test that has been done; process 0 has the whole of it. */
struct done {
    enum test test;
    struct result *results; /* Of each process; no files: it did not take part. */
    double removed;         /* Names that the cleanup removed. */
    double cleanup_seconds;
};

struct bench {
    const struct options *options;
    char directory[PATH_MAX]; /* Absolute. */
    int start_handle;         /* The current directory at the start. */
    int work_handle;          /* `directory`. */
    int participants;
    int place;                /* Of this process among them; negative: it only prepares. */
    int64_t each;             /* Files of each participant. */
    int made[TEST_COUNT];     /* Process 0: directories that we made and that are there. */
    char archive[PATH_MAX];
    bool own_archive;         /* Made by this process. */
    int64_t archive_files;
    int64_t archive_directories;
    double *batches;          /* Create-A: seconds of each batch. */
    int batch_count;
    uint8_t *bytes;           /* What is appended. */
    struct done done[TEST_COUNT];
    int done_count;
};

const char *test_name(enum test test);
/* Directories of a test: one for each participant, or one. */
int test_directories(const struct bench *bench, enum test test);
void test_directory_name(enum test test, int place, char name[64]);

/* Runs a test; collective. False: somebody failed and has said so. */
bool test_run(struct bench *bench, enum test test);

/* Removes all directories that are there; process 0. */
void test_remove_all(struct bench *bench);

/* Finds or makes the archive, and counts what is in it; collective. */
bool archive_prepare(struct bench *bench);
void archive_remove(struct bench *bench);
/* Unpacks the archive in the current directory; `fail`s. */
void archive_unpack(const struct bench *bench);

/* Writes an archive with the document's number of files, directories and bytes; `fail`s. */
enum { ARCHIVE_FILES = 9188, ARCHIVE_DIRECTORIES = 459, ARCHIVE_BYTES = 79482060 };
void archive_write(int handle, const char *path);

void report_write(FILE *to, const struct bench *bench, int argc, char **argv);

/* The same for --json, after what result.h writes; process 0. */
void json_write(struct json *json, const struct bench *bench);

#endif
