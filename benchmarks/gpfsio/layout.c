#include "gpfsio.h"

const char *operation_name(enum operation operation) {
    static const char *const names[] = {"write", "rewrite", "read", "fill", "check"};
    return names[operation];
}

bool cell_has(struct cell cell, int process) {
    return process < cell.nodes;
}

bool layout_is_rotated(const struct options *options, enum operation operation) {
    return operation == OP_CHECK || (operation == OP_READ && options->rotate);
}

int64_t layout_bytes(const struct options *options) {
    return options->records * options->record_bytes;
}

struct region layout_region(const struct options *options, struct cell cell, int process, int thread,
                            bool is_rotated) {
    const int home = is_rotated ? (process + cell.nodes - 1) % cell.nodes : process;
    const int64_t place = (int64_t)home * cell.threads + thread;
    const int64_t all = (int64_t)cell.nodes * cell.threads;
    struct region region = {.home_process = home, .home_thread = thread, .step = options->record_bytes};
    if (options->separate) {
        region.file = place;
    } else if (options->strided) {
        region.offset = place * options->record_bytes;
        region.step = all * options->record_bytes;
    } else {
        region.offset = place * layout_bytes(options);
    }
    return region;
}
