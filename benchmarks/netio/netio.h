/*
 * netio: the network alone, with the traffic of clients and NSD servers, and no disks.
 *
 *   options.c   the command line
 *   latency.c   histograms of latencies, and what they say
 *   connect.c   servers listen, clients connect, everybody knows everybody
 *   traffic.c   requests and answers of one test
 *   report.c    the tables, and the same as JSON
 *   main.c      the order of all this
 */
#ifndef GUPFS_NETIO_H
#define GUPFS_NETIO_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "../common/job.h"
#include "../common/options.h"
#include "../common/random.h"
#include "../common/result.h"
#include "../common/text.h"

enum { SIZES_MAX = 32, CONNECTIONS_MAX = 4096, QUEUE_MAX = 1024, ADDRESS_BYTES = 64, BLOCK_MAX = 256 << 20 };

struct options {
    const char *addresses; /* With commas between; NULL: loopback. */
    const char *interface;
    const char *report_base;
    const char *json;
    int64_t servers;       /* 0: half of the processes. */
    int64_t connections;
    int64_t queue;
    struct numbers writes; /* Percent. */
    int64_t sizes[SIZES_MAX];
    int size_count;
    int64_t seconds;
    int64_t requests;      /* Of each connection; 0: for so many seconds. */
    int64_t port;
    int64_t buffer_bytes;  /* 0: the system's. */
    int64_t timeout;       /* Seconds. */
    bool delay;
    bool check;
};

extern struct options options;
extern const struct option_row OPTION_ROWS[];
extern const char HELP[];
void options_check(void);

/*
 * Latencies in nanoseconds: values to 63 are bins of their own, above that each power of two has 64, so that a
 * bin is no wider than 1.6 % of what is in it.
 */
enum { PART_BITS = 6, PARTS = 1 << PART_BITS, OCTAVES = 38, BINS = PARTS + PARTS * OCTAVES };

struct latency {
    double counts[BINS];
    double sum;         /* Seconds. */
    double sum_squares;
    double longest;
    double shortest;    /* 0: none was measured. */
};
void latency_add(struct latency *latency, double seconds);
void latency_merge(struct latency *into, const struct latency *from);

/* What a histogram says; seconds. */
struct summary {
    double count;
    double mean;
    double sigma;
    double shortest;
    double p50;
    double p90;
    double p99;
    double p999;
    double longest;
};
enum { SUMMARY_DOUBLES = 9 };
struct summary latency_summary(const struct latency *latency);
/* Middle of a bin, in seconds. */
double bin_seconds(int bin);

enum kind { READ, WRITE, KIND_COUNT };

/* One TCP connection of a client and a server. */
struct connection {
    int socket;
    int peer;        /* The other process. */
    int number;      /* Among those of the two. */
    uint64_t key;    /* What chance says on it comes from here; the same at both ends. */
    uint8_t *out;    /* A block to send. */
    uint8_t *in;     /* A block that comes. */
    /* Of the test that is running. */
    double requests[KIND_COUNT];
    double bytes[KIND_COUNT];
    struct latency *latencies; /* KIND_COUNT of them; clients. */
};

/* What one process did in a test. */
struct result {
    double is_server;
    double requests[KIND_COUNT];
    double bytes[KIND_COUNT];
    double seconds;
    double user_seconds;   /* Of the processor. */
    double system_seconds;
    double elapsed;        /* From barrier to barrier. */
    struct summary latencies[KIND_COUNT]; /* Clients. */
};
enum { RESULT_DOUBLES = 9 + KIND_COUNT * SUMMARY_DOUBLES };
_Static_assert(sizeof(struct result) == RESULT_DOUBLES * sizeof(double), "a result is doubles");

/* A test that has been done; process 0 has the whole of it. */
struct done {
    int64_t size;
    int64_t write_percent;
    struct result *results;    /* Of each process. */
    struct latency *latencies; /* Of all: KIND_COUNT of them. */
};

struct run {
    int servers;
    bool is_server;
    char address[ADDRESS_BYTES + 16]; /* Servers: where clients find it. */
    char *endpoints;                  /* Addresses of all servers, as text, ADDRESS_BYTES + 16 each. */
    uint64_t token;                   /* Of this job: strangers do not know it. */
    struct connection *connections;
    int connection_count;
    struct done done[SIZES_MAX * NUMBERS_MAX];
    int done_count;
};

/* Makes all connections; collective. False: somebody has failed and has said so. */
bool connections_make(struct run *run);
void connections_end(struct run *run);

/* Memory for blocks of `size` bytes, for each connection; `fail`s. */
void blocks_make(struct run *run, int64_t size);

/* Runs one test; collective. False: somebody failed and has said so. `latencies` holds those of this process. */
bool test_run(struct run *run, int64_t size, int64_t write_percent, struct result *own, struct latency *latencies);

void report_write(FILE *to, const struct run *run, int argc, char **argv);
void result_write(struct json *json, const struct run *run);

#endif
