/*
 * A file that this process makes for a benchmark and removes, and how benchmarks open files.
 */
#ifndef GUPFS_OWN_FILE_H
#define GUPFS_OWN_FILE_H

#include <limits.h>
#include <stdbool.h>

struct own_file {
    char path[PATH_MAX];
    bool is_there; /* Made by us. */
    bool is_known; /* To the cleaner. */
};

/* Makes the file, empty; what is there already is left alone, and a failure. `fail`s. */
void own_file_make(struct own_file *file, bool keep);
/* Removes it if it has been made. `fail`s. */
void own_file_remove(struct own_file *file);

/* Opens a file to read or to write. Negative: it has `fail`ed. */
struct open_how {
    bool is_write;
    bool direct; /* O_DIRECT. */
    bool drop;   /* Ask the kernel to forget the file's clean pages. */
};
int file_open(const char *path, struct open_how how);

#endif
