#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mptio.h"

/* One test in this process. */
struct bout {
    struct run *run;
    enum test test;
    struct worker *workers;
};

struct worker {
    struct run *run;
    enum test test;
    int index;
    struct segment segment;
    uint8_t *buffer;
    FILE *trace;
    int file;
    uint64_t bytes;
};

static void trace(const struct worker *worker, char what, int64_t offset) {
    if (worker->trace == NULL) return;
    char path[PATH_MAX];
    if (!target_path(worker->run, &worker->segment, path)) return;
    (void)fprintf(worker->trace, "%d %c %s %lld %lld\n", (int)worker->test, what, path,
                  (long long)offset, (long long)worker->run->plan.record_bytes);
}

static bool io_failed(const struct worker *worker, const char *what, int64_t offset, int error) {
    char path[PATH_MAX];
    if (!target_path(worker->run, &worker->segment, path)) return false;
    const bool is_alignment = error == EINVAL && worker->run->options->direct;
    fail("thread %d: %s of %lld bytes at offset %lld of %s: %s%s", worker->index, what,
         (long long)worker->run->plan.record_bytes, (long long)offset, path,
         error == 0 ? "the file ends" : strerror(error),
         is_alignment ? " (direct I/O: is the record size a multiple of its sectors?)" : "");
    return false;
}

static bool seek(const struct worker *worker, int64_t offset) {
    if (lseek(worker->file, offset, SEEK_SET) >= 0) return true;
    return io_failed(worker, "seek before I/O", offset, errno);
}

/* Reads or writes one record where the file stands, which is `offset`. */
static bool move(struct worker *worker, bool is_write, int64_t offset) {
    const int64_t size = worker->run->plan.record_bytes;
    int error = 0;
    if (!transfer(worker->file, is_write, worker->buffer, size, &error)) {
        return io_failed(worker, is_write ? "write" : "read", offset, error);
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
        .pass = worker->run->pass_count + 1,
    };
}

static bool write_record(struct worker *worker, int64_t offset) {
    const struct run *run = worker->run;
    if (run->options->check) {
        pattern_fill((uint64_t *)worker->buffer, run->plan.record_bytes, worker->segment.file, offset,
                     stamp_of(worker));
    }
    return move(worker, true, offset);
}

static bool modify_record(struct worker *worker, int64_t offset) {
    const struct run *run = worker->run;
    if (!move(worker, false, offset)) return false;
    if (run->options->check) {
        ((uint64_t *)worker->buffer)[1] = pattern_word(worker->segment.file, offset, stamp_of(worker));
    } else {
        worker->buffer[0]++;
    }
    return seek(worker, offset) && move(worker, true, offset);
}

static void work(struct worker *worker) {
    const struct run *run = worker->run;
    const enum test test = worker->test;
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
        case RAND_READ: is_good = move(worker, false, offset); break;
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

static void worker_main(void *context, int index) {
    const struct bout *bout = context;
    struct worker *worker = &bout->workers[index];
    worker->file = segment_open(worker->run, &worker->segment, index, open_flags(worker->run, worker->test));
    if (worker->file < 0) return;
    work(worker);
    if (close(worker->file) != 0) (void)io_failed(worker, "close after I/O", worker->segment.offset, errno);
}

static void workers_make(struct bout *bout) {
    struct run *run = bout->run;
    for (int i = 0; i < run->plan.threads; i++) {
        bout->workers[i] = (struct worker){
            .run = run,
            .test = bout->test,
            .index = i,
            .segment = plan_segment(&run->plan, job.rank, i, run->rotations),
            .buffer = records_at(&run->records, i),
            .trace = traces_at(&run->traces, i),
            .file = -1,
        };
    }
}

bool test_run(struct run *run, enum test test, struct result *result) {
    struct bout bout = {.run = run, .test = test};
    struct crew crew = {.work = worker_main, .context = &bout};
    bout.workers = calloc((size_t)run->plan.threads, sizeof *bout.workers);
    if (bout.workers == NULL) {
        fail("no memory for %d threads", run->plan.threads);
    } else {
        crew.count = run->plan.threads;
        workers_make(&bout);
    }
    const bool is_good = crew_run(&crew);
    *result = (struct result){
        .seconds = crew.end - crew.begin,
        .system_seconds = crew.cpu.system,
        .elapsed = crew.elapsed,
    };
    for (int i = 0; i < crew.count; i++) {
        result->bytes += (double)bout.workers[i].bytes;
    }
    free(bout.workers);
    if (!is_good) return false;
    run->passes[run->pass_count++] = (struct pass){.test = test, .rotations = run->rotations};
    return true;
}
