/*
 * mdmark: metadata operations on a tree as users have them (gupfs-2002, Appendix A.3.5).
 *
 *   options.c       the command line
 *   builtin.c       distributions that are there without a file
 *   distribution.c  histograms, the file of distributions, draws from them
 *   plan.c          the tree that a seed makes, without touching anything
 *   make.c          makes it
 *   walk.c          walks through what is there: scan, update, delete, statistics, measure
 *   mix.c           the random mix of operations by subprocesses
 *   report.c        the tables, and the same as JSON
 *   main.c          the order of all this
 */
#ifndef GUPFS_MDMARK_H
#define GUPFS_MDMARK_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "../common/job.h"
#include "../common/options.h"
#include "../common/random.h"
#include "../common/result.h"
#include "../common/text.h"

/* Levels that have a distribution of their own; deeper directories count as the last one. */
enum { LEVELS_MAX = 32 };
/* Levels that a tree may have. */
enum { DEPTH_MAX = 64 };
/* Bytes of a name that we make, its end included. */
enum { NAME_BYTES = 32 };

struct options {
    const char *directory;
    const char *distributions; /* NULL: the built-in ones. */
    const char *measure;       /* --measure: the tree to measure; nothing else is done. */
    const char *output;        /* Where to. */
    const char *report_base;
    const char *json;
    int64_t seed;
    int64_t entries;
    int64_t bytes;
    int64_t file_bytes;
    int64_t levels;
    int64_t mix_seconds; /* 0: no mix. */
    int64_t mix_processes;
    bool existing;
    bool scan;
    bool update;
    bool statistics;
    bool delete;
    bool keep;
    bool hollow;
    bool plan;
    bool builtin;
};

extern struct options options;
extern const struct option_row OPTION_ROWS[];
extern const char HELP[];
void options_check(void);

/*
 * A histogram of whole numbers from 0: values to 15 are bins of their own, above that each power of two has
 * four. The last bin takes what is larger.
 */
enum { EXACT_BINS = 16, OCTAVE_BINS = 4, OCTAVES = 43, BINS = EXACT_BINS + OCTAVE_BINS * OCTAVES };

struct histogram {
    double counts[BINS];
};
int bin_of(int64_t value);
int64_t bin_first(int bin);
int64_t bin_last(int bin);

/* What a walk counted of the directories of one level. */
struct level_counts {
    struct histogram files;
    struct histogram directories;
    struct histogram entries;
};
struct tree_counts {
    struct level_counts levels[LEVELS_MAX];
    struct histogram sizes;
};

/* One row of the file: values from first to last, all equally likely; `until` is the sum of weights up to it. */
struct draw_row {
    int64_t first;
    int64_t last;
    uint64_t until;
};
struct distribution {
    struct draw_row *rows;
    int count;
};
struct profile {
    char *text; /* As read; the same in all processes. */
    struct distribution files[LEVELS_MAX];
    struct distribution directories[LEVELS_MAX];
    struct distribution sizes;
    int levels;
};

/* Reads the distributions in process 0 and hands them to all; collective. False: somebody has said why not. */
bool profile_read(struct profile *profile, const char *path);
void profile_free(struct profile *profile);
/* Draws from the distribution of a level. */
int64_t draw_files(const struct profile *profile, int level, struct stream *stream);
int64_t draw_directories(const struct profile *profile, int level, struct stream *stream);
int64_t draw_size(const struct profile *profile, struct stream *stream);
/* Writes what was measured, as profile_read reads it. */
void profile_write(FILE *to, const struct tree_counts *counts);
/* builtin.c: the distributions that hold without -p. */
extern const char PROFILE_BUILTIN[];

/* A directory of the tree. */
struct node {
    uint64_t key;     /* All that is random in it comes from here. */
    int64_t parent;   /* Index of its node; negative: the root. */
    int32_t level;    /* 0: the root. */
    int32_t files;
    int32_t entry;    /* Its number among the entries of its parent. */
};

struct plan {
    const struct profile *profile;
    struct node *nodes; /* Parents before children. */
    int64_t count;
    int64_t room;
    int64_t *by_level;  /* Indexes of nodes, level for level. */
    int64_t level_begin[DEPTH_MAX + 1];
    int levels;
    int64_t files;
    int64_t bytes;
    const char *limit;  /* The option that ended the tree; NULL: none. */
    bool is_shallow;    /* -l left directories out. */
};

/* The tree of the options; `fail`s. The same in each process, however many there are. */
bool plan_make(struct plan *plan, const struct profile *profile);
void plan_free(struct plan *plan);
/* Name of an entry of a directory, file or not, by its number. */
void entry_name(const struct node *node, int32_t entry, char name[NAME_BYTES]);
int64_t file_size(const struct plan *plan, const struct node *node, int32_t file);
/* What fills a file. */
struct stream file_contents(const struct node *node, int32_t file);
/* The path of a directory below the root of the tree, empty for the root; false and `fail` if it is too long. */
bool node_path(const struct plan *plan, int64_t index, char path[PATH_MAX]);
/* --plan. */
void plan_print(FILE *to, const struct plan *plan);

/* What one process did in a test. */
struct result {
    double files;
    double directories;
    double bytes;
    double operations;     /* Calls that count, see --help. */
    double seconds;        /* Its own work. */
    double system_seconds; /* Of the processor. */
    double elapsed;        /* From barrier to barrier. */
};
enum { RESULT_DOUBLES = 7 };
_Static_assert(sizeof(struct result) == RESULT_DOUBLES * sizeof(double), "a result is doubles");

enum test { MAKE, SCAN, UPDATE, STATISTICS, MIX, DELETE, MEASURE, TEST_COUNT };
const char *test_name(enum test test);

/* Calls of the mix. */
enum call {
    CALL_STAT,
    CALL_UTIME,
    CALL_CREATE,
    CALL_UNLINK,
    CALL_MKDIR,
    CALL_RMDIR,
    CALL_DOWN,
    CALL_UP,
    CALL_READDIR,
    CALL_COUNT
};
const char *call_name(enum call call);

/* What one subprocess did in the mix. */
struct mixed {
    double calls[CALL_COUNT];
    double refused[CALL_COUNT]; /* Of them: what they were about was gone. */
    double seconds;
};
enum { MIXED_DOUBLES = 2 * CALL_COUNT + 1 };
_Static_assert(sizeof(struct mixed) == MIXED_DOUBLES * sizeof(double), "what was mixed is doubles");

struct run {
    struct plan plan;
    char root[PATH_MAX]; /* The tree. */
    bool made;           /* By us. */
    enum test tests[TEST_COUNT];
    int test_count;
    struct result *results[TEST_COUNT]; /* Process 0: of each process, test for test. */
    struct tree_counts *counts;         /* Process 0: of the last statistics. */
    struct mixed *mixed;                /* Process 0: of each subprocess of each process. */
    double skipped;                     /* Measure: directories that could not be read. */
};

/* Each runs one test; collective; false: somebody failed and has said so. */
bool make_run(struct run *run, struct result *own);
bool walk_run(struct run *run, enum test test, struct result *own);
/* `own` has room for options.mix_processes. */
bool mix_run(struct run *run, struct result *own, struct mixed *own_mixed);

double system_seconds(void);

void report_write(FILE *to, const struct run *run, int argc, char **argv);
void result_write(struct json *json, const struct run *run);

#endif
