#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pioraw.h"

/* One test in this process. */
struct bout {
    struct bench *bench;
    enum operation operation;
    struct home home;
    int home_process; /* Whose file it is. */
    int64_t begin;    /* Where it begins to write; only of OP_FILL not 0. */
    int64_t bytes;    /* Moved. */
    int64_t end;      /* First byte behind all that it wrote. */
    double seconds;
};

const char *operation_name(enum operation operation) {
    static const char *const names[] = {"write", "read", "fill", "check"};
    return names[operation];
}

int64_t operation_bytes(const struct bench *bench) {
    return bench->blocks * bench->options->block_bytes;
}

int64_t region_bytes(const struct bench *bench) {
    const int64_t each = operation_bytes(bench);
    return bench->options->file_bytes / each * each;
}

static bool is_reader(enum operation operation) {
    return operation == OP_READ || operation == OP_CHECK;
}

/* First byte that no pass has written of the file of a process. */
static int64_t written_end(const struct bench *bench, int process) {
    int64_t end = 0;
    for (int i = 0; i < bench->history_count; i++) {
        if (bench->history[i].ends[process] > (double)end) end = (int64_t)bench->history[i].ends[process];
    }
    return end;
}

void history_forget(struct bench *bench) {
    for (int i = 0; i < bench->history_count; i++) {
        free(bench->history[i].begins);
        free(bench->history[i].ends);
    }
    bench->history_count = 0;
}

/* Tells all processes what this pass wrote. */
static bool history_add(struct bench *bench, const struct bout *bout) {
    const size_t count = (size_t)job.count;
    struct written *written = &bench->history[bench->history_count];
    const double begin = (double)bout->begin;
    const double end = (double)bout->end;
    *written = (struct written){
        .pass = (bench->writes - 1) % 255 + 1,
        .begins = calloc(count, sizeof(double)),
        .ends = calloc(count, sizeof(double)),
    };
    bench->history_count++;
    if (written->begins == NULL || written->ends == NULL) fail("no memory for %d processes", job.count);
    if (!job_agree()) return false;
    job_gather(&begin, 1, written->begins);
    job_gather(&end, 1, written->ends);
    job_broadcast(written->begins, count * sizeof(double));
    job_broadcast(written->ends, count * sizeof(double));
    return true;
}

/* The pass that wrote `place` of a file last; NULL: none. */
static const struct written *writer_of(const struct bench *bench, int process, int64_t place) {
    for (int i = bench->history_count - 1; i >= 0; i--) {
        const struct written *written = &bench->history[i];
        if (written->begins[process] <= (double)place && (double)place < written->ends[process]) return written;
    }
    return NULL;
}

static bool io_failed(const struct bout *bout, const char *what, int64_t place, int64_t bytes, int error) {
    fail("%s, %d processes, %lld blocks: %s of %lld bytes at offset %lld of %s: %s", operation_name(bout->operation),
         bout->bench->processes, (long long)bout->bench->blocks, what, (long long)bytes,
         (long long)(bout->home.offset + place), bout->home.path, error == 0 ? "the file ends" : strerror(error));
    return false;
}

/* Compares what was read at `place`, piece for piece: each may be of another pass. */
static bool record_is_right(const struct bout *bout, const uint8_t *record, int64_t place, int64_t bytes) {
    const struct bench *bench = bout->bench;
    const int64_t end = place + bytes;
    while (place < end) {
        const struct written *written = writer_of(bench, bout->home_process, place);
        if (written == NULL) return io_failed(bout, "check", place, bytes, EINVAL);
        const double limit = written->ends[bout->home_process];
        const int64_t piece = (limit < (double)end ? (int64_t)limit : end) - place;
        const struct stamp stamp = {.process = bout->home_process, .pass = written->pass};
        char found[128];
        const int64_t bad = pattern_check((const uint64_t *)record, piece, bout->home_process,
                                          bout->home.offset + place, stamp, found);
        if (bad >= 0) {
            fail("%s, %d processes, %lld blocks: %s is wrong at offset %lld: written last by process %d, pass %d; "
                 "found: %s",
                 operation_name(bout->operation), bench->processes, (long long)bench->blocks, bout->home.path,
                 (long long)bad, stamp.process, stamp.pass, found);
            return false;
        }
        place += piece;
        record += piece;
    }
    return true;
}

/* One read or write where the file stands, which is `place` of this process's part. */
static bool operate(const struct bout *bout, int64_t place, int64_t bytes) {
    const struct bench *bench = bout->bench;
    const bool is_write = !is_reader(bout->operation);
    uint8_t *record = records_at(&bench->records, 0);
    FILE *trace = traces_at(&bench->traces, 0);
    int error = 0;
    if (is_write && bench->options->check) {
        const struct stamp stamp = {.process = bout->home_process, .pass = (bench->writes - 1) % 255 + 1};
        pattern_fill((uint64_t *)record, bytes, bout->home_process, bout->home.offset + place, stamp);
    }
    if (!transfer(bench->file, is_write, record, bytes, &error)) {
        return io_failed(bout, is_write ? "write" : "read", place, bytes, error);
    }
    if (trace != NULL) {
        (void)fprintf(trace, "%s %d %lld %s %lld %lld\n", operation_name(bout->operation), bench->processes,
                      (long long)bench->blocks, bout->home.path, (long long)(bout->home.offset + place),
                      (long long)bytes);
    }
    return is_write || !bench->options->check || record_is_right(bout, record, place, bytes);
}

static bool seek(const struct bout *bout, int64_t place) {
    if (lseek(bout->bench->file, bout->home.offset + place, SEEK_SET) >= 0) return true;
    return io_failed(bout, "seek before I/O", place, 0, errno);
}

/* A measured test: round and round until the time is over. */
static void work_for_time(struct bout *bout) {
    const struct options *options = bout->bench->options;
    const int64_t each = operation_bytes(bout->bench);
    const int64_t region = region_bytes(bout->bench);
    int64_t place = region;
    const double begin = now_seconds();
    double end = begin;
    while (end - begin < options->seconds && !job_should_stop()) {
        if (place == region) {
            if (!seek(bout, 0)) return;
            place = 0;
        }
        if (!operate(bout, place, each)) return;
        place += each;
        bout->bytes += each;
        end = now_seconds();
    }
    if (bout->operation == OP_WRITE && options->sync) {
        if (fsync(bout->bench->file) != 0) {
            (void)io_failed(bout, "fsync", 0, bout->bytes, errno);
            return;
        }
        end = now_seconds();
    }
    bout->seconds = end - begin;
    bout->end = bout->bytes < region ? bout->bytes : region;
}

/* A part of the file once. */
static void work_once(struct bout *bout, int64_t end) {
    const int64_t most = operation_bytes(bout->bench);
    if (!seek(bout, bout->begin)) return;
    for (int64_t place = bout->begin; place < end && !job_should_stop();) {
        const int64_t bytes = end - place < most ? end - place : most;
        if (!operate(bout, place, bytes)) return;
        place += bytes;
    }
    bout->end = end;
}

static void worker_main(void *context, int index) {
    struct bout *bout = context;
    (void)index;
    switch (bout->operation) {
    case OP_WRITE:
    case OP_READ: work_for_time(bout); break;
    case OP_FILL: work_once(bout, bout->bench->options->file_bytes); break;
    case OP_CHECK: work_once(bout, written_end(bout->bench, bout->home_process)); break;
    }
}

/* Gathers what each process did in process 0. */
static bool pass_gather(struct bench *bench, enum operation operation, const struct result *own) {
    _Static_assert(sizeof *own == 4 * sizeof(double), "a result is four doubles");
    struct pass *pass = &bench->passes[bench->pass_count];
    *pass = (struct pass){.operation = operation, .processes = bench->processes, .blocks = bench->blocks};
    if (job.rank == 0) {
        pass->results = calloc((size_t)job.count, sizeof *pass->results);
        if (pass->results == NULL) fail("no memory for the results");
    }
    if (!job_agree()) return false;
    job_gather((const double *)own, 4, (double *)pass->results);
    bench->pass_count++;
    return true;
}

bool pass_run(struct bench *bench, enum operation operation) {
    const bool takes_part = job.rank < bench->processes;
    struct bout bout = {.bench = bench, .operation = operation, .home_process = job.rank};
    struct crew crew = {.count = takes_part ? 1 : 0, .work = worker_main, .context = &bout};
    if (operation == OP_CHECK) bout.home_process = (job.rank + bench->processes - 1) % bench->processes;
    if (operation == OP_FILL) bout.begin = written_end(bench, job.rank);
    if (!is_reader(operation)) bench->writes++;
    if (takes_part && target_home(bench, bout.home_process, &bout.home)) {
        target_open(bench, bout.home_process, operation);
    }
    bool is_good = job_agree() && crew_run(&crew);
    target_close(bench, is_good && !is_reader(operation));
    is_good = is_good && job_agree();
    if (is_good && !is_reader(operation)) is_good = history_add(bench, &bout);
    if (!is_good || operation == OP_FILL || operation == OP_CHECK) return is_good;
    const struct result own = {
        .bytes = (double)bout.bytes,
        .seconds = bout.seconds,
        .user_seconds = crew.cpu.user,
        .system_seconds = crew.cpu.system,
    };
    return pass_gather(bench, operation, &own);
}
