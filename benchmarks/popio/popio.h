/*
 * popio: 2D arrays of an ocean model, written and read back by MPI-IO (ncar-2008, section 4.3).
 *
 *   options.c  the command line
 *   layout.c   which pieces of an array a process has, and what must be in them
 *   method.c   the ways to write and to read
 *   main.c     passes: a method writes, or reads and all is compared
 *   report.c   the tables, and the same as JSON
 */
#ifndef GUPFS_POPIO_H
#define GUPFS_POPIO_H

#include <limits.h>
#include <mpi.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "../common/job.h"
#include "../common/options.h"
#include "../common/result.h"
#include "../common/text.h"

enum method { COLLECTIVE, INDEPENDENT, PIECES, GATHER, OWN, METHOD_COUNT };
const char *method_name(enum method method);
/* What it is called in file names and on the command line. */
const char *method_word(enum method method);

enum { HINTS_MAX = 32, ITERATIONS_MAX = 1000, PASSES_MAX = METHOD_COUNT * 2 * ITERATIONS_MAX };

/* Width and height: 0 x 0 if none was given. */
struct pair {
    int64_t x;
    int64_t y;
};

struct options {
    const char *directory;
    const char *report_base;
    const char *json;
    int64_t columns;
    int64_t rows;
    int64_t arrays;
    int64_t iterations;
    struct pair tile;
    struct pair grid;
    bool methods[METHOD_COUNT];
    bool methods_given;
    bool only_write;
    bool only_read;
    bool shift;
    bool sync;
    bool keep;
    int hint_count;
    const char *hints[HINTS_MAX]; /* key=value */
};

extern struct options options;
extern const struct option_row OPTION_ROWS[];
extern const char HELP[];
void options_check(void);

/* The decomposition: tiles are dealt to a grid of processes, cyclically in both directions. */
struct layout {
    struct pair grid;
    struct pair tile;
};
/* Fills in what was not given; `fail`s. */
void layout_make(struct layout *layout);

/* Elements of an array that one process has and that follow one another in the file. */
struct piece {
    int offset; /* Elements from the begin of the array. */
    int length;
};
struct share {
    struct piece *pieces; /* By offset. */
    int count;
    int elements;         /* Of all pieces: of one array. */
};
/* `fail`s if there is no memory. */
void share_make(struct share *share, const struct layout *layout, int process);
void share_free(struct share *share);

/* What an element must be: no other element of any array and iteration has it. */
double element_value(int iteration, int array, int offset);
void share_fill(const struct share *share, double *data, int iteration);
/* Compares what was read, all arrays; `fail`s with the first element that is wrong. */
void share_compare(const struct share *share, const double *data, int iteration, enum method method, int process,
                   const char *path);

/* One pass of one process. */
struct result {
    double bytes;
    double requests;       /* Calls that read or write. */
    double open_seconds;
    double io_seconds;
    double close_seconds;
    double seconds;        /* All three. */
    double system_seconds; /* Of the processor. */
    double elapsed;        /* From barrier to barrier. */
};
enum { RESULT_DOUBLES = 8 };
_Static_assert(sizeof(struct result) == RESULT_DOUBLES * sizeof(double), "a result is doubles");

struct pass {
    enum method method;
    bool is_write;
    int iteration;
    struct result *results; /* Process 0: of each process. */
};

struct run {
    struct layout layout;
    char directory[PATH_MAX];
    struct share write_share;
    struct share read_share; /* Of the process whose tiles we read. */
    int read_process;
    double *data;            /* All arrays of the larger share. */
    double *whole;           /* GATHER, process 0: one array. */
    MPI_Datatype *types;     /* GATHER, process 0: the pieces of each process in an array. */
    MPI_Request *requests;   /* GATHER, process 0: one for each process. */
    MPI_Info hints;
    bool exists[METHOD_COUNT]; /* Files of ours. */
    struct pass passes[PASSES_MAX];
    int pass_count;
};

/* The file that a method has for the tiles of `process`; false and `fail` if its name is too long. */
bool method_path(const struct run *run, enum method method, int process, char path[PATH_MAX]);
/* Prepares what the methods of the options need besides the data; collective; `fail`s. */
void methods_prepare(struct run *run);
void methods_free(struct run *run);
/* Writes or reads all arrays; collective. False: somebody failed and has said so. */
bool method_run(struct run *run, enum method method, bool is_write, struct result *own);
/* Removes the files of a method; collective, `fail`s. */
void method_remove(struct run *run, enum method method);

void report_write(FILE *to, const struct run *run, int argc, char **argv);
void result_write(struct json *json, const struct run *run);

#endif
