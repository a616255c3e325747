#define _GNU_SOURCE
#include "job.h"

#include <errno.h>
#include <limits.h>
#include <mpi.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cleaner.h"

enum { TAG_STOP = 7, TAG_VALUES };

/* Waiting for others: how long without giving the processor away, and how long each rest is. */
#define SPIN_SECONDS 0.0002
#define REST_NANOSECONDS 100000

struct job job;

/* The processes of this node, once somebody has asked. */
static MPI_Comm node = MPI_COMM_NULL;

static struct {
    pthread_mutex_t lock;
    atomic_bool here;  /* This process failed. */
    atomic_bool there; /* Another one did. */
    char text[FAILURE_TEXT_MAX];
    bool told;         /* The others have been sent a stop. */
    int heard;         /* Stops received. */
    MPI_Request *sends;
} failure = {.lock = PTHREAD_MUTEX_INITIALIZER};

void job_wait(void *waited) {
    MPI_Request *request = waited;
    const struct timespec rest = {.tv_nsec = REST_NANOSECONDS};
    const double begin = now_seconds();
    int done = 0;
    for (;;) {
        MPI_Test(request, &done, MPI_STATUS_IGNORE);
        if (done) return;
        if (now_seconds() - begin < SPIN_SECONDS) {
            (void)sched_yield();
        } else {
            (void)nanosleep(&rest, NULL);
        }
    }
}

void job_begin(const char *program, int *argc, char ***argv) {
    int provided = 0;
    job.program = program;
    /* A limit of the file size is an error of write (EFBIG), with a message of ours. */
    (void)signal(SIGXFSZ, SIG_IGN);
    cleaner_start();
    MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &job.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &job.count);
    if (provided < MPI_THREAD_FUNNELED) {
        fail("this MPI does not allow threads");
    }
}

int job_end(int status) {
    free(failure.sends);
    failure.sends = NULL;
    cleaner_end();
    if (node != MPI_COMM_NULL) MPI_Comm_free(&node);
    MPI_Finalize();
    return status;
}

void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    pthread_mutex_lock(&failure.lock);
    if (!atomic_load(&failure.here)) {
        (void)vsnprintf(failure.text, sizeof failure.text, format, arguments);
        atomic_store(&failure.here, true);
    }
    pthread_mutex_unlock(&failure.lock);
    va_end(arguments);
}

bool job_should_stop(void) {
    return atomic_load_explicit(&failure.here, memory_order_relaxed) ||
           atomic_load_explicit(&failure.there, memory_order_relaxed);
}

static void receive_stop(void) {
    MPI_Recv(NULL, 0, MPI_BYTE, MPI_ANY_SOURCE, TAG_STOP, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    failure.heard++;
    atomic_store(&failure.there, true);
}

void job_exchange_stops(void) {
    if (atomic_load(&failure.here) && !failure.told) {
        /* Without memory the others hear of it at the end of what they do. */
        failure.sends = malloc((size_t)job.count * sizeof *failure.sends);
        if (failure.sends == NULL) return;
        for (int other = 0; other < job.count; other++) {
            failure.sends[other] = MPI_REQUEST_NULL;
            if (other == job.rank) continue;
            MPI_Isend(NULL, 0, MPI_BYTE, other, TAG_STOP, MPI_COMM_WORLD, &failure.sends[other]);
        }
        failure.told = true;
    }
    int waiting = 0;
    do {
        MPI_Iprobe(MPI_ANY_SOURCE, TAG_STOP, MPI_COMM_WORLD, &waiting, MPI_STATUS_IGNORE);
        if (waiting) receive_stop();
    } while (waiting);
}

bool job_agree(void) {
    job_barrier();
    const bool is_bad = atomic_load(&failure.here);
    /* The lowest process that failed; how many failed, and how many sent stops. */
    int first = is_bad ? job.rank : job.count;
    int counts[2] = {is_bad ? 1 : 0, failure.told ? 1 : 0};
    int sums[2] = {0, 0};
    MPI_Request request;
    MPI_Iallreduce(MPI_IN_PLACE, &first, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD, &request);
    job_wait(&request);
    MPI_Iallreduce(counts, sums, 2, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &request);
    job_wait(&request);
    if (first == job.count) return true;
    while (failure.heard < sums[1] - counts[1]) {
        receive_stop();
    }
    for (int other = 0; failure.told && other < job.count; other++) {
        MPI_Wait(&failure.sends[other], MPI_STATUS_IGNORE);
    }
    if (first == job.rank) {
        char others[64] = "";
        if (sums[0] > 1 && sums[0] < job.count) {
            (void)snprintf(others, sizeof others, " (%d processes failed)", sums[0]);
        }
        (void)fprintf(stderr, "%s: process %d: %s%s\n", job.program, job.rank, failure.text, others);
        (void)fflush(stderr);
    }
    return false;
}

void job_barrier(void) {
    MPI_Request request;
    MPI_Ibarrier(MPI_COMM_WORLD, &request);
    job_wait(&request);
}

unsigned long long job_fingerprint(int argc, char **argv) {
    /* FNV-1a; the end of each argument counts as well. */
    unsigned long long sum = 14695981039346656037ULL;
    for (int i = 1; i < argc; i++) {
        for (const char *at = argv[i];; at++) {
            sum = (sum ^ (unsigned char)*at) * 1099511628211ULL;
            if (*at == '\0') break;
        }
    }
    return sum;
}

void job_compare(unsigned long long value, const char *what) {
    unsigned long long first = value;
    job_broadcast(&first, sizeof first);
    if (first != value) {
        fail("%s differs from that of process 0", what);
    }
}

void job_broadcast(void *data, size_t size) {
    MPI_Request request;
    MPI_Ibcast(data, (int)size, MPI_BYTE, 0, MPI_COMM_WORLD, &request);
    job_wait(&request);
}

void job_gather(const double *values, int count, double *all) {
    MPI_Request request;
    MPI_Igather(values, count, MPI_DOUBLE, all, count, MPI_DOUBLE, 0, MPI_COMM_WORLD, &request);
    job_wait(&request);
}

void job_gather_bytes(const void *data, size_t size, void *all) {
    MPI_Request request;
    MPI_Igather(data, (int)size, MPI_BYTE, all, (int)size, MPI_BYTE, 0, MPI_COMM_WORLD, &request);
    job_wait(&request);
}

void job_sum(double *values, int count) {
    MPI_Request request;
    const void *from = job.rank == 0 ? MPI_IN_PLACE : values;
    MPI_Ireduce(from, values, count, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD, &request);
    job_wait(&request);
}

bool job_share(const void *own, size_t size, size_t most, char **all, size_t *all_size) {
    MPI_Request request;
    /* Sizes and places of all, as MPI wants them. */
    int *sizes = calloc(2 * (size_t)job.count, sizeof *sizes);
    *all = NULL;
    *all_size = 0;
    if (most > INT_MAX) most = INT_MAX;
    if (sizes == NULL) {
        fail("no memory for %d processes", job.count);
    } else if (size > most) {
        fail("%zu bytes are more than the %zu that processes can share", size, most);
    }
    if (!job_agree()) {
        free(sizes);
        return false;
    }
    sizes[job.rank] = (int)size;
    MPI_Iallgather(MPI_IN_PLACE, 1, MPI_INT, sizes, 1, MPI_INT, MPI_COMM_WORLD, &request);
    job_wait(&request);
    int *places = sizes + job.count;
    size_t sum = 0;
    for (int process = 0; process < job.count; process++) {
        places[process] = sum > most ? 0 : (int)sum;
        sum += (size_t)sizes[process];
    }
    if (sum > most) {
        fail("%zu bytes are more than the %zu that processes can share", sum, most);
    } else if (sum > 0) {
        *all = malloc(sum);
        if (*all == NULL) fail("no memory for %zu bytes", sum);
    }
    const bool is_good = job_agree();
    if (is_good && sum > 0) {
        MPI_Iallgatherv(own, (int)size, MPI_BYTE, *all, sizes, places, MPI_BYTE, MPI_COMM_WORLD, &request);
        job_wait(&request);
        *all_size = sum;
    } else {
        free(*all);
        *all = NULL;
    }
    free(sizes);
    return is_good;
}

void job_hand_over(double *values, int count, int from) {
    MPI_Request request;
    if (from == 0 || (job.rank != 0 && job.rank != from)) return;
    if (job.rank == from) {
        MPI_Isend(values, count, MPI_DOUBLE, 0, TAG_VALUES, MPI_COMM_WORLD, &request);
    } else {
        MPI_Irecv(values, count, MPI_DOUBLE, from, TAG_VALUES, MPI_COMM_WORLD, &request);
    }
    job_wait(&request);
}

bool job_is_first_of_node(void) {
    int rank = 0;
    if (node == MPI_COMM_NULL) {
        MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, job.rank, MPI_INFO_NULL, &node);
    }
    MPI_Comm_rank(node, &rank);
    return rank == 0;
}

void job_share_in_node(void *data, size_t size) {
    MPI_Request request;
    MPI_Ibcast(data, (int)size, MPI_BYTE, 0, node, &request);
    job_wait(&request);
}

double now_seconds(void) {
    struct timespec time;
    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}
