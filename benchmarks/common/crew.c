#define _GNU_SOURCE
#include "crew.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "job.h"
#include "pattern.h"

/* How often the first thread looks for failures of other processes while its workers work. */
enum { LOOK_MILLISECONDS = 50 };

enum gate { GATE_CLOSED, GATE_OPEN, GATE_GO_HOME };

/* What the threads share. */
struct hall {
    struct crew *crew;
    pthread_mutex_t lock;
    pthread_cond_t gate_moved;
    pthread_cond_t all_done;
    enum gate gate;
    int working;
    double end;
    struct cpu_seconds cpu_end;
};

struct worker {
    struct hall *hall;
    int index;
    pthread_t thread;
};

static double seconds_of(struct timeval time) {
    return (double)time.tv_sec + (double)time.tv_usec / 1e6;
}

struct cpu_seconds cpu_of_process(void) {
    struct rusage usage;
    (void)getrusage(RUSAGE_SELF, &usage);
    return (struct cpu_seconds){.user = seconds_of(usage.ru_utime), .system = seconds_of(usage.ru_stime)};
}

static void *worker_main(void *argument) {
    const struct worker *worker = argument;
    struct hall *hall = worker->hall;
    pthread_mutex_lock(&hall->lock);
    while (hall->gate == GATE_CLOSED) {
        pthread_cond_wait(&hall->gate_moved, &hall->lock);
    }
    const bool is_open = hall->gate == GATE_OPEN;
    pthread_mutex_unlock(&hall->lock);
    if (is_open) hall->crew->work(hall->crew->context, worker->index);
    pthread_mutex_lock(&hall->lock);
    hall->working--;
    if (hall->working == 0) {
        hall->end = now_seconds();
        hall->cpu_end = cpu_of_process();
        if (hall->crew->at_end != NULL) hall->crew->at_end(hall->crew->context);
        pthread_cond_signal(&hall->all_done);
    }
    pthread_mutex_unlock(&hall->lock);
    return NULL;
}

/* Starts the workers, who wait at the gate. Returns how many there are: fewer than asked for if it `fail`ed. */
static int hall_fill(struct hall *hall, struct worker *workers) {
    for (int i = 0; i < hall->crew->count; i++) {
        workers[i] = (struct worker){.hall = hall, .index = i};
        const int error = pthread_create(&workers[i].thread, NULL, worker_main, &workers[i]);
        if (error != 0) {
            fail("cannot start thread %d: %s", i, strerror(error));
            return i;
        }
        pthread_mutex_lock(&hall->lock);
        hall->working++;
        pthread_mutex_unlock(&hall->lock);
    }
    return hall->crew->count;
}

static void hall_open_gate(struct hall *hall, enum gate gate) {
    pthread_mutex_lock(&hall->lock);
    hall->gate = gate;
    pthread_cond_broadcast(&hall->gate_moved);
    pthread_mutex_unlock(&hall->lock);
}

/* Waits for the workers, and looks for failures of other processes meanwhile. */
static void hall_wait(struct hall *hall) {
    pthread_mutex_lock(&hall->lock);
    while (hall->working > 0) {
        struct timespec until;
        (void)clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += LOOK_MILLISECONDS * 1000000L;
        if (until.tv_nsec >= 1000000000L) {
            until.tv_nsec -= 1000000000L;
            until.tv_sec++;
        }
        (void)pthread_cond_timedwait(&hall->all_done, &hall->lock, &until);
        if (hall->working == 0) break;
        pthread_mutex_unlock(&hall->lock);
        job_exchange_stops();
        pthread_mutex_lock(&hall->lock);
    }
    pthread_mutex_unlock(&hall->lock);
}

static void hall_make(struct hall *hall, struct crew *crew) {
    *hall = (struct hall){.crew = crew};
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&hall->lock, NULL);
    pthread_cond_init(&hall->gate_moved, NULL);
    pthread_cond_init(&hall->all_done, &attributes);
    pthread_condattr_destroy(&attributes);
}

static void hall_end(struct hall *hall) {
    pthread_cond_destroy(&hall->all_done);
    pthread_cond_destroy(&hall->gate_moved);
    pthread_mutex_destroy(&hall->lock);
}

bool crew_run(struct crew *crew) {
    struct hall hall;
    hall_make(&hall, crew);
    struct worker *workers = calloc((size_t)crew->count + 1, sizeof *workers);
    int started = 0;
    if (workers == NULL) {
        fail("no memory for %d threads", crew->count);
    } else {
        started = hall_fill(&hall, workers);
    }
    job_barrier();
    if (crew->at_gate != NULL) crew->at_gate(crew->context);
    const struct cpu_seconds cpu_begin = cpu_of_process();
    crew->begin = now_seconds();
    hall.end = crew->begin;
    hall.cpu_end = cpu_begin;
    hall_open_gate(&hall, job_should_stop() ? GATE_GO_HOME : GATE_OPEN);
    hall_wait(&hall);
    job_exchange_stops();
    job_barrier();
    crew->elapsed = now_seconds() - crew->begin;
    for (int i = 0; i < started; i++) {
        pthread_join(workers[i].thread, NULL);
    }
    crew->end = hall.end;
    crew->cpu.user = hall.cpu_end.user - cpu_begin.user;
    crew->cpu.system = hall.cpu_end.system - cpu_begin.system;
    free(workers);
    hall_end(&hall);
    return job_agree();
}

void records_make(struct records *records, int count, int64_t bytes) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t stride = ((size_t)bytes + page - 1) / page * page;
    size_t whole = 0;
    void *memory = NULL;
    free(records->memory);
    records->memory = NULL;
    if (__builtin_mul_overflow(stride, (size_t)count, &whole) || posix_memalign(&memory, page, whole) != 0) {
        fail("no memory for %d records of %lld bytes", count, (long long)bytes);
        return;
    }
    records->memory = memory;
    records->stride = stride;
    uint64_t *words = memory;
    for (size_t i = 0; i < whole / sizeof *words; i++) {
        words[i] = mix(((uint64_t)job.rank << 40) + i);
    }
}

uint8_t *records_at(const struct records *records, int index) {
    return records->memory + (size_t)index * records->stride;
}
