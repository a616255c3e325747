#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpfsio.h"

/* One test in this process. */
struct bout {
    struct bench *bench;
    enum operation operation;
    int run;
    struct span *spans; /* Of each thread, on the clock here. */
    struct cpu_state gate;
    struct cpu_state end;
};

struct worker {
    const struct bout *bout;
    int index;
    struct region region;
    uint8_t *record;
    FILE *trace;
};

static bool is_reader(enum operation operation) {
    return operation == OP_READ || operation == OP_CHECK;
}

/* The stamp of the last pass that wrote: the one that is running if it writes. */
static struct stamp stamp_of(const struct bench *bench, const struct region *region) {
    return (struct stamp){
        .process = region->home_process,
        .thread = region->home_thread,
        .pass = (bench->writes - 1) % 255 + 1,
    };
}

static bool io_failed(const struct worker *worker, const char *what, int64_t offset, int error) {
    char path[PATH_MAX];
    if (!files_path(worker->bout->bench, &worker->region, path)) return false;
    fail("%s, %d nodes, %d threads: thread %d: %s of %lld bytes at offset %lld of %s: %s",
         operation_name(worker->bout->operation), worker->bout->bench->cell.nodes, worker->bout->bench->cell.threads,
         worker->index, what, (long long)worker->bout->bench->options->record_bytes, (long long)offset, path,
         error == 0 ? "the file ends" : strerror(error));
    return false;
}

static void trace(const struct worker *worker, int64_t offset) {
    const struct bout *bout = worker->bout;
    char path[PATH_MAX];
    if (worker->trace == NULL || !files_path(bout->bench, &worker->region, path)) return;
    (void)fprintf(worker->trace, "%s %d %d %d %s %lld %lld\n", operation_name(bout->operation),
                  bout->bench->cell.nodes, bout->bench->cell.threads, bout->run, path, (long long)offset,
                  (long long)bout->bench->options->record_bytes);
}

static bool record_is_right(const struct worker *worker, int64_t offset) {
    const struct bench *bench = worker->bout->bench;
    const struct stamp stamp = stamp_of(bench, &worker->region);
    char found[128];
    char path[PATH_MAX];
    const int64_t bad = pattern_check((const uint64_t *)worker->record, bench->options->record_bytes,
                                      worker->region.file, offset, stamp, found);
    if (bad < 0) return true;
    if (!files_path(bench, &worker->region, path)) return false;
    fail("%s, %d nodes, %d threads: thread %d: %s is wrong at offset %lld: written last by process %d, thread %d, "
         "pass %d; found: %s",
         operation_name(worker->bout->operation), bench->cell.nodes, bench->cell.threads, worker->index, path,
         (long long)bad, stamp.process, stamp.thread, stamp.pass, found);
    return false;
}

/* All records of a thread. False: it has `fail`ed. */
static bool work(const struct worker *worker) {
    const struct bench *bench = worker->bout->bench;
    const struct options *options = bench->options;
    const bool is_write = !is_reader(worker->bout->operation);
    const int file = bench->files[worker->index];
    const bool is_checked = options->check;
    int64_t offset = worker->region.offset;
    int error = 0;
    if (lseek(file, offset, SEEK_SET) < 0) return io_failed(worker, "seek before I/O", offset, errno);
    for (int64_t i = 0; i < options->records && !job_should_stop(); i++, offset += worker->region.step) {
        if (i > 0 && options->strided && lseek(file, offset, SEEK_SET) < 0) {
            return io_failed(worker, "seek before I/O", offset, errno);
        }
        if (is_write && is_checked) {
            pattern_fill((uint64_t *)worker->record, options->record_bytes, worker->region.file, offset,
                         stamp_of(bench, &worker->region));
        }
        if (!transfer(file, is_write, worker->record, options->record_bytes, &error)) {
            return io_failed(worker, is_write ? "write" : "read", offset, error);
        }
        trace(worker, offset);
        if (!is_write && is_checked && !record_is_right(worker, offset)) return false;
    }
    if (is_write && options->sync && fsync(file) != 0) return io_failed(worker, "fsync", offset, errno);
    return true;
}

static void worker_main(void *context, int index) {
    const struct bout *bout = context;
    struct bench *bench = bout->bench;
    const bool is_rotated = layout_is_rotated(bench->options, bout->operation);
    const struct worker worker = {
        .bout = bout,
        .index = index,
        .region = layout_region(bench->options, bench->cell, job.rank, index, is_rotated),
        .record = records_at(&bench->records, index),
        .trace = traces_at(&bench->traces, index),
    };
    struct span *span = &bout->spans[index];
    span->begin = now_seconds();
    if (work(&worker)) span->end = now_seconds();
}

static void look_at_gate(void *context) {
    struct bout *bout = context;
    cpu_look(bout->bench->options, &bout->gate);
}

static void look_at_end(void *context) {
    struct bout *bout = context;
    cpu_look(bout->bench->options, &bout->end);
}

/* Everything of a process that process 0 wants to know: a span for each thread, then this. */
struct tail {
    struct node_result node;
    struct server_cpu servers[SERVERS_MAX];
};

enum {
    SPAN_DOUBLES = sizeof(struct span) / sizeof(double),
    TAIL_DOUBLES = sizeof(struct tail) / sizeof(double),
};

/* Process 0: what all processes sent, one row after another, becomes a pass. */
static void pass_fill(const struct bench *bench, struct pass *pass, const double *rows) {
    const size_t width = (size_t)pass->cell.threads * SPAN_DOUBLES + TAIL_DOUBLES;
    const size_t threads = (size_t)pass->cell.nodes * (size_t)pass->cell.threads;
    struct tail tail;
    double first = 0;
    double last = 0;
    for (int node = 0; node < pass->cell.nodes; node++) {
        const double *row = rows + (size_t)node * width;
        memcpy(pass->spans + (size_t)node * (size_t)pass->cell.threads, row,
               (size_t)pass->cell.threads * sizeof *pass->spans);
        memcpy(&tail, row + (size_t)pass->cell.threads * SPAN_DOUBLES, sizeof tail);
        pass->nodes[node] = tail.node;
        if (tail.node.clock_error > pass->clock_error) pass->clock_error = tail.node.clock_error;
    }
    for (size_t i = 0; i < threads; i++) {
        if (i == 0 || pass->spans[i].begin < first) first = pass->spans[i].begin;
        if (i == 0 || pass->spans[i].end > last) last = pass->spans[i].end;
    }
    for (size_t i = 0; i < threads; i++) {
        pass->spans[i].begin -= first;
        pass->spans[i].end -= first;
    }
    for (int i = 0; i < bench->options->server_count; i++) {
        const double *row = rows + (size_t)bench->options->servers[i].process * width;
        memcpy(&tail, row + (size_t)pass->cell.threads * SPAN_DOUBLES, sizeof tail);
        pass->servers[i] = tail.servers[i];
    }
    pass->seconds = last - first;
    pass->bytes = (double)layout_bytes(bench->options) * (double)threads;
}

/* Collective: `own` of all processes to process 0. */
static bool pass_gather(const struct bench *bench, struct pass *pass, const struct bout *bout, const struct tail *tail) {
    const struct cell cell = bench->cell;
    const size_t width = (size_t)cell.threads * SPAN_DOUBLES + TAIL_DOUBLES;
    double *own = calloc(width, sizeof *own);
    double *rows = NULL;
    if (job.rank == 0) {
        rows = calloc(width * (size_t)job.count, sizeof *rows);
        pass->spans = calloc((size_t)cell.nodes * (size_t)cell.threads, sizeof *pass->spans);
        pass->nodes = calloc((size_t)cell.nodes, sizeof *pass->nodes);
    }
    if (own == NULL || (job.rank == 0 && (rows == NULL || pass->spans == NULL || pass->nodes == NULL))) {
        fail("no memory for the times of %d threads", cell.threads);
    }
    const bool is_good = job_agree();
    if (is_good) {
        memcpy(own, bout->spans, (size_t)cell.threads * sizeof *bout->spans);
        memcpy(own + (size_t)cell.threads * SPAN_DOUBLES, tail, sizeof *tail);
        job_gather(own, (int)width, rows);
        if (job.rank == 0) pass_fill(bench, pass, rows);
    }
    free(own);
    free(rows);
    return is_good;
}

/* Runs the threads, and compares the clocks before and after it; the spans are on the clock of process 0 then. */
static bool bout_run(struct bout *bout, struct tail *tail) {
    struct bench *bench = bout->bench;
    const struct options *options = bench->options;
    const bool takes_part = cell_has(bench->cell, job.rank);
    struct cpu_state after;
    struct crew crew = {
        .count = takes_part ? bench->cell.threads : 0,
        .work = worker_main,
        .at_gate = look_at_gate,
        .at_end = look_at_end,
        .context = bout,
    };
    const struct clock_reading before = clock_compare();
    if (!crew_run(&crew)) return false;
    cpu_look(options, &after);
    const struct clock_reading behind = clock_compare();
    for (int i = 0; i < crew.count; i++) {
        bout->spans[i].begin = clock_time(bout->spans[i].begin, &before, &behind);
        bout->spans[i].end = clock_time(bout->spans[i].end, &before, &behind);
    }
    if (takes_part) {
        tail->node.process = crew.cpu;
        tail->node.node = node_cpu_between(&bout->gate, &bout->end);
        tail->node.clock_error = before.error > behind.error ? before.error : behind.error;
    }
    for (int i = 0; i < options->server_count; i++) {
        if (options->servers[i].process == job.rank) tail->servers[i] = server_cpu_between(&bout->gate, &after, i);
    }
    return true;
}

bool pass_run(struct bench *bench, enum operation operation, int run, struct pass *pass) {
    struct bout bout = {.bench = bench, .operation = operation, .run = run};
    struct tail tail = {0};
    const bool is_measured = operation <= OP_READ;
    if (!is_reader(operation)) bench->writes++;
    bout.spans = calloc((size_t)bench->cell.threads, sizeof *bout.spans);
    if (bout.spans == NULL) fail("no memory for the times of %d threads", bench->cell.threads);
    files_open(bench, operation);
    bool is_good = job_agree() && bout_run(&bout, &tail);
    /* Also after a failure: what is open must be closed. */
    if (is_good && !is_reader(operation)) files_sync(bench);
    files_close(bench);
    is_good = is_good && job_agree();
    if (is_good && is_measured) {
        if (job.rank == 0) *pass = (struct pass){.operation = operation, .cell = bench->cell, .run = run, .counts = true};
        is_good = pass_gather(bench, pass, &bout, &tail);
    }
    free(bout.spans);
    return is_good;
}
