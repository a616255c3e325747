#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "mptio.h"

/* How often the first thread looks for failures of other processes while its workers work. */
enum { LOOK_MILLISECONDS = 50 };

enum gate { GATE_CLOSED, GATE_OPEN, GATE_GO_HOME };

/* The threads of this process in one test. */
struct crew {
    struct run *run;
    enum test test;
    pthread_mutex_t lock;
    pthread_cond_t gate_moved;
    pthread_cond_t all_done;
    enum gate gate;
    int working;
    uint64_t bytes;
    double end;
    double system_end;
};

struct worker {
    struct crew *crew;
    int index;
    pthread_t thread;
    struct segment segment;
    uint8_t *buffer;
    FILE *trace;
    int file;
    uint64_t bytes;
};

static double system_seconds(void) {
    struct rusage usage;
    (void)getrusage(RUSAGE_SELF, &usage);
    return (double)usage.ru_stime.tv_sec + (double)usage.ru_stime.tv_usec / 1e6;
}

static void trace(const struct worker *worker, char what, int64_t offset) {
    if (worker->trace == NULL) return;
    char path[PATH_MAX];
    if (!target_path(worker->crew->run, &worker->segment, path)) return;
    (void)fprintf(worker->trace, "%d %c %s %lld %lld\n", (int)worker->crew->test, what, path,
                  (long long)offset, (long long)worker->crew->run->plan.record_bytes);
}

static bool io_failed(const struct worker *worker, const char *what, int64_t offset, int error) {
    char path[PATH_MAX];
    if (!target_path(worker->crew->run, &worker->segment, path)) return false;
    const bool is_alignment = error == EINVAL && worker->crew->run->options->direct;
    fail("thread %d: %s of %lld bytes at offset %lld of %s: %s%s", worker->index, what,
         (long long)worker->crew->run->plan.record_bytes, (long long)offset, path,
         error == 0 ? "the file ends" : strerror(error),
         is_alignment ? " (direct I/O: is the record size a multiple of its sectors?)" : "");
    return false;
}

static bool seek(const struct worker *worker, int64_t offset) {
    if (lseek(worker->file, offset, SEEK_SET) >= 0) return true;
    return io_failed(worker, "seek before I/O", offset, errno);
}

/* Reads or writes one record where the file stands, which is `offset`. */
static bool transfer(struct worker *worker, bool is_write, int64_t offset) {
    const int64_t size = worker->crew->run->plan.record_bytes;
    const char *what = is_write ? "write" : "read";
    int64_t done = 0;
    while (done < size) {
        uint8_t *at = worker->buffer + done;
        const size_t rest = (size_t)(size - done);
        const ssize_t moved = is_write ? write(worker->file, at, rest) : read(worker->file, at, rest);
        if (moved < 0 && errno == EINTR) continue;
        if (moved < 0) return io_failed(worker, what, offset, errno);
        if (moved == 0) return io_failed(worker, what, offset, is_write ? ENOSPC : 0);
        done += moved;
    }
    worker->bytes += (uint64_t)size;
    trace(worker, is_write ? 'w' : 'r', offset);
    return true;
}

/* The next pass is the one that is running. */
static struct stamp stamp_of(const struct worker *worker) {
    return (struct stamp){
        .process = job.rank,
        .thread = worker->index,
        .pass = worker->crew->run->pass_count + 1,
    };
}

static bool write_record(struct worker *worker, int64_t offset) {
    const struct run *run = worker->crew->run;
    if (run->options->check) {
        pattern_fill((uint64_t *)worker->buffer, run->plan.record_bytes, worker->segment.file, offset,
                     stamp_of(worker));
    }
    return transfer(worker, true, offset);
}

static bool modify_record(struct worker *worker, int64_t offset) {
    const struct run *run = worker->crew->run;
    if (!transfer(worker, false, offset)) return false;
    if (run->options->check) {
        ((uint64_t *)worker->buffer)[1] = pattern_word(worker->segment.file, offset, stamp_of(worker));
    } else {
        worker->buffer[0]++;
    }
    return seek(worker, offset) && transfer(worker, true, offset);
}

static void work(struct worker *worker) {
    const struct run *run = worker->crew->run;
    const enum test test = worker->crew->test;
    const bool is_random = test == RAND_WRITE || test == RAND_READ;
    const int64_t count = plan_operations(&run->plan, test);
    struct draws draws = draws_begin(&run->plan, &worker->segment, test);
    if (!is_random && !seek(worker, worker->segment.offset)) return;
    for (int64_t i = 0; i < count && !job_should_stop(); i++) {
        const int64_t record = is_random ? draws_next(&draws) : i;
        const int64_t offset = worker->segment.offset + record * run->plan.record_bytes;
        if (is_random && !seek(worker, offset)) return;
        bool is_good = false;
        switch (test) {
        case SEQ_WRITE:
        case RAND_WRITE: is_good = write_record(worker, offset); break;
        case READ_MODIFY_WRITE: is_good = modify_record(worker, offset); break;
        case SEQ_READ:
        case RAND_READ: is_good = transfer(worker, false, offset); break;
        }
        if (!is_good) return;
    }
}

static int open_flags(const struct run *run, enum test test) {
    switch (test) {
    case SEQ_WRITE: return run->plan.mode == MODE_DEVICES ? O_WRONLY : O_WRONLY | O_CREAT;
    case READ_MODIFY_WRITE: return O_RDWR;
    case RAND_WRITE: return O_WRONLY;
    case SEQ_READ:
    case RAND_READ: break;
    }
    return O_RDONLY;
}

static void *worker_main(void *argument) {
    struct worker *worker = argument;
    struct crew *crew = worker->crew;
    pthread_mutex_lock(&crew->lock);
    while (crew->gate == GATE_CLOSED) {
        pthread_cond_wait(&crew->gate_moved, &crew->lock);
    }
    const bool is_open = crew->gate == GATE_OPEN;
    pthread_mutex_unlock(&crew->lock);
    if (is_open) {
        worker->file = segment_open(crew->run, &worker->segment, worker->index,
                                    open_flags(crew->run, crew->test));
        if (worker->file >= 0) {
            work(worker);
            if (close(worker->file) != 0) {
                (void)io_failed(worker, "close after I/O", worker->segment.offset, errno);
            }
        }
    }
    pthread_mutex_lock(&crew->lock);
    crew->bytes += worker->bytes;
    crew->working--;
    if (crew->working == 0) {
        crew->end = now_seconds();
        crew->system_end = system_seconds();
        pthread_cond_signal(&crew->all_done);
    }
    pthread_mutex_unlock(&crew->lock);
    return NULL;
}

/* Starts the workers, who wait at the gate. Returns how many there are: fewer than asked for if it `fail`ed. */
static int crew_start(struct crew *crew, struct worker *workers) {
    struct run *run = crew->run;
    for (int i = 0; i < run->plan.threads; i++) {
        workers[i] = (struct worker){
            .crew = crew,
            .index = i,
            .segment = plan_segment(&run->plan, job.rank, i, run->rotations),
            .buffer = run->buffers + (size_t)i * run->buffer_stride,
            .trace = run->traces == NULL ? NULL : run->traces[i],
            .file = -1,
        };
        const int error = pthread_create(&workers[i].thread, NULL, worker_main, &workers[i]);
        if (error != 0) {
            fail("cannot start thread %d: %s", i, strerror(error));
            return i;
        }
        pthread_mutex_lock(&crew->lock);
        crew->working++;
        pthread_mutex_unlock(&crew->lock);
    }
    return run->plan.threads;
}

static void crew_open_gate(struct crew *crew, enum gate gate) {
    pthread_mutex_lock(&crew->lock);
    crew->gate = gate;
    pthread_cond_broadcast(&crew->gate_moved);
    pthread_mutex_unlock(&crew->lock);
}

/* Waits for the workers, and looks for failures of other processes meanwhile. */
static void crew_wait(struct crew *crew) {
    pthread_mutex_lock(&crew->lock);
    while (crew->working > 0) {
        struct timespec until;
        (void)clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += LOOK_MILLISECONDS * 1000000L;
        if (until.tv_nsec >= 1000000000L) {
            until.tv_nsec -= 1000000000L;
            until.tv_sec++;
        }
        (void)pthread_cond_timedwait(&crew->all_done, &crew->lock, &until);
        if (crew->working == 0) break;
        pthread_mutex_unlock(&crew->lock);
        job_exchange_stops();
        pthread_mutex_lock(&crew->lock);
    }
    pthread_mutex_unlock(&crew->lock);
}

static void crew_make(struct crew *crew, struct run *run, enum test test) {
    *crew = (struct crew){.run = run, .test = test};
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&crew->lock, NULL);
    pthread_cond_init(&crew->gate_moved, NULL);
    pthread_cond_init(&crew->all_done, &attributes);
    pthread_condattr_destroy(&attributes);
}

static void crew_end(struct crew *crew) {
    pthread_cond_destroy(&crew->all_done);
    pthread_cond_destroy(&crew->gate_moved);
    pthread_mutex_destroy(&crew->lock);
}

bool test_run(struct run *run, enum test test, struct result *result) {
    struct crew crew;
    crew_make(&crew, run, test);
    struct worker *workers = calloc((size_t)run->plan.threads, sizeof *workers);
    int started = 0;
    if (workers == NULL) {
        fail("no memory for %d threads", run->plan.threads);
    } else {
        started = crew_start(&crew, workers);
    }
    job_barrier();
    const double system_begin = system_seconds();
    const double begin = now_seconds();
    crew_open_gate(&crew, job_should_stop() ? GATE_GO_HOME : GATE_OPEN);
    crew_wait(&crew);
    job_exchange_stops();
    job_barrier();
    const double end = now_seconds();
    for (int i = 0; i < started; i++) {
        pthread_join(workers[i].thread, NULL);
    }
    *result = (struct result){
        .bytes = (double)crew.bytes,
        .seconds = crew.end - begin,
        .system_seconds = crew.system_end - system_begin,
        .elapsed = end - begin,
    };
    free(workers);
    crew_end(&crew);
    if (!job_agree()) return false;
    run->passes[run->pass_count++] = (struct pass){.test = test, .rotations = run->rotations};
    return true;
}

bool trace_begin(struct run *run) {
    const char *directory = getenv("MPTIO_TRACE");
    if (directory == NULL || *directory == '\0') return job_agree();
    run->traces = calloc((size_t)run->plan.threads, sizeof *run->traces);
    if (run->traces == NULL) {
        fail("no memory for the trace");
        return job_agree();
    }
    for (int i = 0; i < run->plan.threads; i++) {
        char path[PATH_MAX];
        if (snprintf(path, sizeof path, "%s/%d.%d", directory, job.rank, i) >= (int)sizeof path) {
            fail("MPTIO_TRACE: the name is too long");
            break;
        }
        run->traces[i] = fopen(path, "we");
        if (run->traces[i] == NULL) {
            fail("cannot write the trace %s: %s", path, strerror(errno));
            break;
        }
    }
    return job_agree();
}

void trace_end(struct run *run) {
    if (run->traces == NULL) return;
    for (int i = 0; i < run->plan.threads; i++) {
        if (run->traces[i] == NULL) continue;
        const bool is_bad = ferror(run->traces[i]) != 0;
        if (fclose(run->traces[i]) != 0 || is_bad) fail("cannot write the trace of thread %d", i);
    }
    free(run->traces);
    run->traces = NULL;
}
