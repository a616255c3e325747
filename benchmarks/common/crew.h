/*
 * Threads of each process that do one thing together, from a barrier of all processes to the next one.
 *
 * They are started, wait at a gate until all processes of the job are there, and work. The first thread of
 * the process hears meanwhile of failures of others (`job_should_stop` tells the workers).
 */
#ifndef GUPFS_CREW_H
#define GUPFS_CREW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What a process took of the processors, all its threads together. */
struct cpu_seconds {
    double user;
    double system;
};

struct cpu_seconds cpu_of_process(void);

struct crew {
    int count; /* Threads; none: this process only waits. */
    void (*work)(void *context, int index); /* Of each thread; `fail`s. */
    void (*at_gate)(void *context); /* By the first thread, before it opens the gate; NULL: nothing. */
    void (*at_end)(void *context);  /* By the last thread that is done; NULL: nothing. */
    void *context;
    /* What `crew_run` says; seconds of `now_seconds`. */
    double begin;           /* The gate opened. */
    double end;             /* The last thread was done; `begin` if there is none. */
    struct cpu_seconds cpu; /* From `begin` to `end`. */
    double elapsed;         /* From barrier to barrier. */
};

/* Collective. False: somebody failed and has said so. */
bool crew_run(struct crew *crew);

/* Memory of `count` records, one for each thread. */
struct records {
    uint8_t *memory;
    size_t stride;
};

/*
 * Room for the records, aligned for direct I/O and not full of zeros, which devices may not store. `fail`s.
 * What was there before is given back.
 */
void records_make(struct records *records, int count, int64_t bytes);
uint8_t *records_at(const struct records *records, int index);

#endif
