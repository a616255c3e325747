/*
 * The command line of a program: a table with a row for each option, read into a struct of the program.
 *
 * The struct holds the defaults before it is read, and is checked by the program afterwards: the table knows
 * what one option may be, the program what they say about one another.
 */
#ifndef GUPFS_OPTIONS_H
#define GUPFS_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Letters from here on are none: an option that has only a name. */
enum { OPTION_LONG = 256 };

/* Most numbers of a list. */
enum { NUMBERS_MAX = 64 };

/* A list of numbers, such as 1,2,4. */
struct numbers {
    int count;
    int64_t values[NUMBERS_MAX];
};

/* What an option's value is, and what the field in the struct must be. */
enum option_kind {
    OPTION_FLAG,    /* bool, set to true; no value. */
    OPTION_TEXT,    /* const char *. */
    OPTION_NUMBER,  /* int64_t, from `least` to `most`. */
    OPTION_SIZE,    /* int64_t, bytes with K, M or G, from `least` (0 or 1) on. */
    OPTION_NUMBERS, /* struct numbers, each from `least` to `most`, none twice, with commas between. */
    OPTION_WORDS,   /* bool[], one for each word of `what` ("write,read"): those that are given, commas between. */
    OPTION_OWN,     /* Whatever `read` makes of its value. */
    OPTION_OWN_FLAG /* Whatever `read` makes of its being there; its value is NULL. */
};

struct option_row {
    int letter;       /* -x, or OPTION_LONG + n, different for each option; 0: the end of the table. */
    const char *name; /* --name; NULL: it has none. */
    enum option_kind kind;
    size_t at;        /* offsetof the field; not of own kinds. */
    int64_t least;
    int64_t most;
    const char *what; /* OPTION_SIZE: "the file size", for messages; OPTION_WORDS: all words. */
    bool (*read)(void *options, int letter, const char *value); /* False: it has `fail`ed. */
};

/* The largest of a list, which is not empty. */
int64_t numbers_largest(const struct numbers *numbers);

/* Where word `index` of `words` begins, and its length; NULL: there are fewer. */
const char *options_word(const char *words, int index, size_t *length);

enum options_asked { OPTIONS_RUN, OPTIONS_HELP, OPTIONS_BAD };

/*
 * Reads the command line; --help belongs to every program, needs no row, and is the last that is read.
 * OPTIONS_BAD: it has `fail`ed.
 */
enum options_asked options_read_rows(const struct option_row *rows, void *options, int argc, char **argv);

#endif
