/*
 * One MPI job: who we are, and how it ends.
 *
 * A failure is recorded where it happens (`fail`), by any thread of any process, and acted upon where all
 * processes meet (`job_agree`): the lowest process that failed says why, alone, and everybody goes the way
 * out together: clean up, `job_end`. Nobody calls exit or MPI_Abort, so that nobody leaves files behind and
 * nobody waits for a process that is gone. What ends a process without asking it (a signal, a fatal error of
 * MPI) ends the job by way of mpiexec, and the cleaner (cleaner.h) removes what is left.
 */
#ifndef GUPFS_JOB_H
#define GUPFS_JOB_H

#include <stdbool.h>
#include <stddef.h>

/* Bytes of the text of a failure, its end included. */
enum { FAILURE_TEXT_MAX = 6144 };

/* Exit codes of every process of the job. */
enum { EXIT_RUN_FAILED = 1, EXIT_BAD_USAGE = 2 };

struct job {
    const char *program; /* Name for messages. */
    int rank;            /* Of this process, from 0. */
    int count;           /* Processes. */
};

/* Set by `job_begin`, never changed after it. */
extern struct job job;

/* Joins the MPI job. Only the thread that calls this may call the functions that say "collective". */
void job_begin(const char *program, int *argc, char ***argv);

/* Leaves the MPI job; collective. Returns `status`, for main. */
int job_end(int status);

/* Records why this process cannot go on; the first one counts. May be called by any thread. */
void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Whether this process has failed or has heard of one that has: what it does is for nothing. */
bool job_should_stop(void);

/*
 * Collective. True: nobody has failed. False: somebody has, and has said why on standard error; clean up and
 * return `job_end`. Waits for all processes as `job_barrier` does.
 */
bool job_agree(void);

/*
 * To be called now and then by the first thread while other threads of this process work: tells the other
 * processes of a failure here, and hears of theirs.
 */
void job_exchange_stops(void);

/*
 * Collective. Waits for all processes; soon gives the processor away, as all collectives here do, because
 * whoever is still being measured may need it.
 */
void job_barrier(void);

/* Waits for an MPI_Request, and soon gives the processor to whoever is late. */
void job_wait(void *request);

/* A number for the arguments, so that processes can see whether they were started alike. */
unsigned long long job_fingerprint(int argc, char **argv);

/* Collective. `fail`s in every process whose `value` is not that of process 0. */
void job_compare(unsigned long long value, const char *what);

/* Collective. Sends `size` bytes at `data` of process 0 to all. */
void job_broadcast(void *data, size_t size);

/*
 * Collective. Gathers `count` doubles of each process in process 0, which gives room for job.count times as
 * many; the others may give NULL.
 */
void job_gather(const double *values, int count, double *all);

/* Collective. Gathers `size` bytes of each process in process 0, in the order of the processes. */
void job_gather_bytes(const void *data, size_t size, void *all);

/* Collective. Process 0 gets the sums of `count` doubles of all processes; the others' values are left alone. */
void job_sum(double *values, int count);

/*
 * Collective. All processes get the bytes of all, in the order of the processes, in new memory (NULL if there
 * are none). False: they are more than `most` together, or somebody has failed, and somebody has said so.
 */
bool job_share(const void *own, size_t size, size_t most, char **all, size_t *all_size);

/*
 * Collective. Hands `count` doubles of process `from` to process 0; the others' values are left alone.
 */
void job_hand_over(double *values, int count, int from);

/* Collective. Whether this process is the lowest of its node (of those that can share memory with it). */
bool job_is_first_of_node(void);

/* Collective, after `job_is_first_of_node`. Sends `size` bytes of the first of each node to the others. */
void job_share_in_node(void *data, size_t size);

/* Seconds of a clock that only runs forward. */
double now_seconds(void);

#endif
