/*
 * Reading and writing whole records, and a trace of it for tests.
 */
#ifndef GUPFS_TRANSFER_H
#define GUPFS_TRANSFER_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/*
 * Reads or writes `size` bytes where the file stands, with as few calls as the file system allows. False:
 * `*error` says why; 0: the file ends.
 */
bool transfer(int file, bool is_write, void *bytes, int64_t size, int *error);

/* Files of a trace, one for each thread of a process. */
struct traces {
    FILE **files; /* NULL: no trace is asked for. */
    int count;
};

/*
 * Opens DIR/PROCESS.THREAD for each thread, where DIR is the value of the environment variable `variable`;
 * nothing if that is not set. `fail`s.
 */
void traces_open(struct traces *traces, const char *variable, int count);
/* The file of a thread; NULL: nothing is to be traced. */
FILE *traces_at(const struct traces *traces, int index);
/* `fail`s if the trace could not be written. */
void traces_close(struct traces *traces);

#endif
