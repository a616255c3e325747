/*
 * The clocks of several nodes: what must be added to the time here to get that of process 0.
 *
 * Nodes agree on no time that could be trusted to a millisecond, so it is measured: process 0 sends a message and
 * takes its answer, which holds the other's time; that time lies between the two, and the shortest of many
 * exchanges says it best. The error is half of that exchange. Processes that run on the very clock of process 0
 * (the same boot of the same machine, and the same time namespace) need no message: nothing is to be added.
 */
#ifndef GUPFS_CLOCK_H
#define GUPFS_CLOCK_H

/* One comparison; seconds. */
struct clock_reading {
    double at;     /* When, by `now_seconds` here. */
    double offset; /* Process 0's time less the time here. */
    double error;  /* The offset is wrong by at most this much. */
};

/* Collective. Compares the clock of each process with that of process 0. */
struct clock_reading clock_compare(void);

/* The time of process 0 at `time` here, by a comparison before it and one after it: clocks do not run alike. */
double clock_time(double time, const struct clock_reading *before, const struct clock_reading *after);

#endif
