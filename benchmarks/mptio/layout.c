#include "mptio.h"

/* Whole number closest to a / b; the smaller of two. */
static int64_t closest(int64_t a, int64_t b) {
    const int64_t quotient = a / b;
    const int64_t rest = a % b;
    return rest > b - rest ? quotient + 1 : quotient;
}

static bool round_up(int64_t *value, int64_t unit) {
    const int64_t rest = *value % unit;
    return rest == 0 || !__builtin_add_overflow(*value, unit - rest, value);
}

/* Bytes of the regions of all processes on one device, or of all files together; false: no off_t. */
static bool plan_fits(const struct plan *plan) {
    int64_t bytes = 0;
    return !__builtin_mul_overflow(plan->records, plan->record_bytes, &bytes) &&
           !__builtin_mul_overflow(bytes, plan->threads, &bytes) &&
           !__builtin_mul_overflow(bytes, plan->processes, &bytes) &&
           !__builtin_add_overflow(bytes, plan->offset, &bytes);
}

bool plan_make(struct plan *plan, const struct options *options, int processes, int64_t block_bytes) {
    const int devices = options->mode == MODE_DEVICES ? options->device_count : 1;
    *plan = (struct plan){
        .mode = options->mode,
        .processes = processes,
        .devices = devices,
        .record_bytes = options->record_bytes,
        .offset = options->offset,
        .overlap_processes = options->overlap_processes,
        .overlap_threads = options->overlap_threads,
        .rotate = options->rotate,
    };
    int64_t threads = options->threads;
    if (!round_up(&threads, devices) || !round_up(&plan->record_bytes, block_bytes) ||
        !round_up(&plan->offset, block_bytes) || processes > PROCESSES_MAX) {
        fail("the sizes are too large");
        return false;
    }
    plan->threads = (int)threads;
    if (options->direct && (plan->record_bytes % 512 != 0 || plan->offset % 512 != 0)) {
        fail("-I: the record size and the offset must be multiples of 512");
        return false;
    }
    if (options->check && (plan->record_bytes % PATTERN_UNIT != 0 || plan->offset % PATTERN_UNIT != 0)) {
        fail("-C: the record size and the offset must be multiples of %d", PATTERN_UNIT);
        return false;
    }
    /* With -F, all is divided at once: a file size need not be a multiple of the processes. */
    const bool is_global = options->global_bytes != 0;
    const int64_t bytes = is_global ? options->global_bytes : options->process_bytes;
    const int64_t shares = is_global ? processes : 1;
    const int64_t parts = plan->overlap_threads ? shares : shares * threads;
    if (plan->record_bytes > bytes / shares) {
        fail("the record size, %lld bytes, is larger than the file size of a process, %lld bytes",
             (long long)plan->record_bytes, (long long)(bytes / shares));
        return false;
    }
    int64_t divisor = 0;
    if (__builtin_mul_overflow(plan->record_bytes, parts, &divisor)) {
        plan->records = 0;
    } else {
        plan->records = closest(bytes, divisor);
    }
    if (plan->records == 0) {
        fail("%d threads with records of %lld bytes do not fit into the file size of a process, %lld bytes",
             plan->threads, (long long)plan->record_bytes, (long long)(bytes / shares));
        return false;
    }
    plan->random_count = options->random_count != 0 ? options->random_count : plan->records;
    if (!plan_fits(plan)) {
        fail("the files would end beyond what a file can hold");
        return false;
    }
    return true;
}

int plan_threads_per_device(const struct plan *plan) {
    return plan->threads / plan->devices;
}

int64_t plan_process_bytes(const struct plan *plan) {
    const int64_t parts = plan->overlap_threads ? 1 : plan->threads;
    return parts * plan->records * plan->record_bytes;
}

int plan_worker(const struct plan *plan, int home_process, int rotations) {
    return (home_process + rotations % plan->processes) % plan->processes;
}

struct segment plan_segment(const struct plan *plan, int process, int thread, int rotations) {
    const int back = rotations % plan->processes;
    const int home = (process - back + plan->processes) % plan->processes;
    const int64_t region = plan->records * plan->record_bytes;
    const int per_device = plan_threads_per_device(plan);
    const int in_device = thread % per_device;
    /* What one process has of a file or device that processes share. */
    const int64_t share = plan->overlap_threads ? region : region * per_device;
    const int64_t thread_offset = plan->overlap_threads ? 0 : region * in_device;
    const int64_t process_offset = plan->overlap_processes ? 0 : share * home;
    struct segment segment = {.home_process = home, .home_thread = thread, .offset = plan->offset};
    switch (plan->mode) {
    case MODE_GLOBAL: segment.offset += process_offset + thread_offset; break;
    case MODE_PROCESS:
        segment.file = home;
        segment.offset += thread_offset;
        break;
    case MODE_THREAD: segment.file = (int64_t)home * plan->threads + thread; break;
    case MODE_DEVICES:
        segment.file = thread / per_device;
        segment.offset += process_offset + thread_offset;
        break;
    }
    return segment;
}

int64_t plan_end(const struct plan *plan) {
    const struct segment last = plan_segment(plan, plan->processes - 1, plan->threads - 1, 0);
    return last.offset + plan->records * plan->record_bytes;
}

int64_t plan_operations(const struct plan *plan, enum test test) {
    return test == RAND_WRITE || test == RAND_READ ? plan->random_count : plan->records;
}

struct draws draws_begin(const struct plan *plan, const struct segment *segment, enum test test) {
    const uint64_t place = ((uint64_t)segment->home_process << 32) | (uint64_t)segment->home_thread;
    return (struct draws){
        .state = mix(mix(place + 1) + (uint64_t)test),
        .records = (uint64_t)plan->records,
    };
}

int64_t draws_next(struct draws *draws) {
    draws->state += UINT64_C(0x9e3779b97f4a7c15);
    return (int64_t)(mix(draws->state) % draws->records);
}

const char *test_name(enum test test) {
    static const char *const names[TEST_COUNT] = {"Seq_Write", "Rd_Mod_Wr", "Rand_Write", "Seq_Read",
                                                  "Rand_Read"};
    return names[test];
}
