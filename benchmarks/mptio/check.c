#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mptio.h"

/* Records between two looks for failures of other processes. */
enum { LOOK_RECORDS = 64 };

/* The pass that wrote a record last; 0: none of this run. */
struct history {
    uint8_t *whole;  /* All of it but the stamp of its first unit. */
    uint8_t *signed_; /* The stamp of its first unit. */
};

struct checker {
    struct run *run;
    int thread;
    struct segment segment;
    struct history history;
    int file;
    uint64_t *record;
};

/* Replays which records of a region the random writers drew. */
static void replay_random(const struct checker *checker, int pass_number) {
    const struct plan *plan = &checker->run->plan;
    const struct segment *own = &checker->segment;
    const int per_device = plan_threads_per_device(plan);
    const int group = own->home_thread / per_device * per_device;
    const int first_process = plan->overlap_processes ? 0 : own->home_process;
    const int end_process = plan->overlap_processes ? plan->processes : own->home_process + 1;
    const int first_thread = plan->overlap_threads ? group : own->home_thread;
    const int end_thread = plan->overlap_threads ? group + per_device : own->home_thread + 1;
    for (int process = first_process; process < end_process; process++) {
        for (int thread = first_thread; thread < end_thread; thread++) {
            const struct segment segment = {.home_process = process, .home_thread = thread};
            struct draws draws = draws_begin(plan, &segment, RAND_WRITE);
            for (int64_t i = 0; i < plan_operations(plan, RAND_WRITE); i++) {
                const int64_t record = draws_next(&draws);
                checker->history.whole[record] = (uint8_t)pass_number;
                checker->history.signed_[record] = (uint8_t)pass_number;
            }
        }
    }
}

static void replay(const struct checker *checker) {
    const struct run *run = checker->run;
    const size_t records = (size_t)run->plan.records;
    memset(checker->history.whole, 0, records);
    memset(checker->history.signed_, 0, records);
    for (int i = 0; i < run->pass_count; i++) {
        switch (run->passes[i].test) {
        case SEQ_WRITE:
            memset(checker->history.whole, i + 1, records);
            memset(checker->history.signed_, i + 1, records);
            break;
        case READ_MODIFY_WRITE: memset(checker->history.signed_, i + 1, records); break;
        case RAND_WRITE: replay_random(checker, i + 1); break;
        case SEQ_READ:
        case RAND_READ: break;
        }
    }
}

/* Who must have written in pass `number`; with overlap, one of those who could have. */
static struct stamp expected_stamp(const struct checker *checker, int number) {
    const struct run *run = checker->run;
    const int rotations = run->passes[number - 1].rotations;
    return (struct stamp){
        .process = plan_worker(&run->plan, checker->segment.home_process, rotations),
        .thread = checker->segment.home_thread,
        .pass = number,
    };
}

/* Whether a stamp may stand where pass `number` wrote last. */
static bool stamp_is_right(const struct checker *checker, struct stamp stamp, int number) {
    const struct plan *plan = &checker->run->plan;
    if (number == 0) return true;
    const struct stamp expected = expected_stamp(checker, number);
    const int per_device = plan_threads_per_device(plan);
    const bool is_process = plan->overlap_processes ? stamp.process < plan->processes
                                                    : stamp.process == expected.process;
    const bool is_thread = plan->overlap_threads
                               ? stamp.thread / per_device == expected.thread / per_device
                               : stamp.thread == expected.thread;
    return is_process && is_thread && stamp.pass == number;
}

/* Says what is wrong with the unit at `offset`: its offset word, or its stamp. */
static void unit_failed(const struct checker *checker, const uint64_t *unit, int64_t offset, int number) {
    const struct run *run = checker->run;
    char path[PATH_MAX];
    char when[64] = "check before the first test";
    char expected[128] = "any stamp of an earlier run";
    char found[128] = "no stamp that belongs here";
    if (!target_path(run, &checker->segment, path)) return;
    if (run->pass_count > 0) {
        const enum test test = run->passes[run->pass_count - 1].test;
        (void)snprintf(when, sizeof when, "check after test %d (%s)", (int)test, test_name(test));
    }
    int64_t bad = offset;
    struct stamp stamp;
    const bool is_stamp = pattern_read(unit[1], checker->segment.file, offset, &stamp);
    if (number != 0) {
        const struct stamp right = expected_stamp(checker, number);
        (void)snprintf(expected, sizeof expected, "process %d, thread %d, pass %d", right.process,
                       right.thread, right.pass);
        if (unit[0] == (uint64_t)offset) {
            bad += 8 + pattern_difference(unit[1], pattern_word(checker->segment.file, offset, right));
        }
    } else if (unit[0] == (uint64_t)offset) {
        bad += 8;
    }
    if (unit[0] != (uint64_t)offset) {
        bad += pattern_difference(unit[0], (uint64_t)offset);
        (void)snprintf(found, sizeof found, "0x%016llx instead of the offset",
                       (unsigned long long)unit[0]);
    } else if (is_stamp) {
        (void)snprintf(found, sizeof found, "process %d, thread %d, pass %d", stamp.process, stamp.thread,
                       stamp.pass);
    }
    fail("%s: thread %d: %s is wrong at offset %lld: written last by %s; found: %s", when, checker->thread,
         path, (long long)bad, expected, found);
}

static bool record_check(const struct checker *checker, int64_t index) {
    const struct run *run = checker->run;
    const int64_t begin = checker->segment.offset + index * run->plan.record_bytes;
    const uint64_t *unit = checker->record;
    for (int64_t at = 0; at < run->plan.record_bytes; at += PATTERN_UNIT, unit += 2) {
        const int number = at == 0 ? checker->history.signed_[index] : checker->history.whole[index];
        struct stamp stamp;
        const bool is_right = unit[0] == (uint64_t)(begin + at) &&
                              pattern_read(unit[1], checker->segment.file, begin + at, &stamp) &&
                              stamp_is_right(checker, stamp, number);
        if (!is_right) {
            unit_failed(checker, unit, begin + at, number);
            return false;
        }
    }
    return true;
}

static bool record_read(const struct checker *checker, int64_t index) {
    const struct run *run = checker->run;
    const int64_t size = run->plan.record_bytes;
    const int64_t offset = checker->segment.offset + index * size;
    int error = 0;
    if (lseek(checker->file, offset, SEEK_SET) < 0) {
        error = errno;
    } else if (transfer(checker->file, false, checker->record, size, &error)) {
        return true;
    }
    fail("thread %d: read of %lld bytes at offset %lld of file %lld for -C: %s", checker->thread, (long long)size,
         (long long)offset, (long long)checker->segment.file, error == 0 ? "the file ends" : strerror(error));
    return false;
}

static void trace_check(const struct checker *checker, int64_t index) {
    const struct run *run = checker->run;
    FILE *to = traces_at(&run->traces, checker->thread);
    char path[PATH_MAX];
    if (to == NULL || !target_path(run, &checker->segment, path)) return;
    const int64_t size = run->plan.record_bytes;
    const int test = run->pass_count == 0 ? 0 : (int)run->passes[run->pass_count - 1].test;
    (void)fprintf(to, "%d c %s %lld %lld\n", test, path,
                  (long long)(checker->segment.offset + index * size), (long long)size);
}

static void segment_check(struct checker *checker) {
    struct run *run = checker->run;
    checker->segment = plan_segment(&run->plan, job.rank, checker->thread, run->rotations);
    checker->record = (uint64_t *)records_at(&run->records, checker->thread);
    checker->file = segment_open(run, &checker->segment, checker->thread, O_RDONLY);
    if (checker->file < 0) return;
    replay(checker);
    for (int64_t i = 0; i < run->plan.records && !job_should_stop(); i++) {
        if (i % LOOK_RECORDS == 0) job_exchange_stops();
        if (!record_read(checker, i)) break;
        trace_check(checker, i);
        if (!record_check(checker, i)) break;
    }
    (void)close(checker->file);
}

bool check_run(struct run *run) {
    struct checker checker = {.run = run};
    checker.history.whole = malloc((size_t)run->plan.records);
    checker.history.signed_ = malloc((size_t)run->plan.records);
    if (checker.history.whole == NULL || checker.history.signed_ == NULL) {
        fail("no memory for the history of %lld records", (long long)run->plan.records);
    } else {
        const int per_device = plan_threads_per_device(&run->plan);
        for (int thread = 0; thread < run->plan.threads && !job_should_stop(); thread++) {
            /* Threads that share a region need one look together. */
            if (run->plan.overlap_threads && thread % per_device != 0) continue;
            checker.thread = thread;
            segment_check(&checker);
        }
    }
    free(checker.history.whole);
    free(checker.history.signed_);
    job_exchange_stops();
    return job_agree();
}
