#include "pioraw.h"

#define MIB 1048576.0

/* A test as a whole. */
struct sum {
    double bytes;
    double seconds; /* The longest of a process. */
};

static struct sum sum_of(const struct pass *pass) {
    struct sum sum = {0};
    for (int process = 0; process < pass->processes; process++) {
        sum.bytes += pass->results[process].bytes;
        if (pass->results[process].seconds > sum.seconds) sum.seconds = pass->results[process].seconds;
    }
    return sum;
}

static double rate_of(struct sum sum) {
    return sum.seconds > 0 ? sum.bytes / MIB / sum.seconds : 0;
}

static void write_operation(FILE *to, const struct bench *bench, int processes, enum operation operation) {
    if (!bench->options->operations[operation]) return;
    (void)fprintf(to, "%s\n%8s %12s %14s %12s\n", operation == OP_WRITE ? "WRITE" : "READ", "#blks", "MB/s",
                  "Volume MB", "Seconds");
    for (int i = 0; i < bench->pass_count; i++) {
        const struct pass *pass = &bench->passes[i];
        if (pass->processes != processes || pass->operation != operation) continue;
        const struct sum sum = sum_of(pass);
        (void)fprintf(to, "%8lld %12.2f %14.3f %12.6f\n", (long long)pass->blocks, rate_of(sum), sum.bytes / MIB,
                      sum.seconds);
    }
    (void)fprintf(to, "[0] Filesize: %lld bytes\n\n", (long long)bench->options->file_bytes);
}

void report_write(FILE *to, const struct bench *bench, int argc, char **argv) {
    const struct options *options = bench->options;
    (void)fputs("PIORAW\n\n", to);
    for (int i = 0; i < options->processes.count; i++) {
        const int processes = (int)options->processes.values[i];
        (void)fprintf(to, "Number of PEs: %d\nBlocksize: %lld bytes\n", processes, (long long)options->block_bytes);
        write_operation(to, bench, processes, OP_WRITE);
        write_operation(to, bench, processes, OP_READ);
    }
    (void)fputs("RAW TIMES\n# operation processes blocks process bytes seconds user_seconds system_seconds\n", to);
    for (int i = 0; i < bench->pass_count; i++) {
        const struct pass *pass = &bench->passes[i];
        for (int process = 0; process < pass->processes; process++) {
            const struct result *of = &pass->results[process];
            (void)fprintf(to, "%s %d %lld %d %.0f %.9f %.6f %.6f\n", operation_name(pass->operation), pass->processes,
                          (long long)pass->blocks, process, of->bytes, of->seconds, of->user_seconds,
                          of->system_seconds);
        }
    }
    report_command(to, argc, argv);
    if (options->check) {
        (void)fputs("Note: -C: the pattern was made and compared within the times; all checks passed\n", to);
    }
    if (bench->traces.files != NULL) {
        (void)fputs("Note: PIORAW_TRACE was set: the tests wrote a trace within their time\n", to);
    }
}

void json_write(struct json *json, const struct bench *bench) {
    json_array(json, "devices");
    for (int i = 0; i < bench->options->device_count; i++) {
        json_text(json, NULL, bench->options->devices[i]);
    }
    json_end(json);
    json_number(json, "test_seconds", bench->options->seconds);
    json_array(json, "results");
    for (int i = 0; i < bench->pass_count; i++) {
        const struct pass *pass = &bench->passes[i];
        const struct sum sum = sum_of(pass);
        json_object(json, NULL);
        json_text(json, "operation", operation_name(pass->operation));
        json_integer(json, "processes", pass->processes);
        json_integer(json, "blocks", pass->blocks);
        json_integer(json, "block_bytes", bench->options->block_bytes);
        json_number(json, "bytes", sum.bytes);
        json_number(json, "seconds", sum.seconds);
        json_number(json, "rate_mb_s", rate_of(sum));
        json_array(json, "raw");
        for (int process = 0; process < pass->processes; process++) {
            const struct result *of = &pass->results[process];
            JSON_ROW(json, "process", process, {"bytes", of->bytes}, {"seconds", of->seconds},
                     {"user_seconds", of->user_seconds}, {"system_seconds", of->system_seconds});
        }
        json_end(json);
        json_end(json);
    }
    json_end(json);
}

void plan_write(FILE *to, const struct bench *bench) {
    const struct options *options = bench->options;
    for (int i = 0; i < options->processes.count; i++) {
        for (int process = 0; process < options->processes.values[i]; process++) {
            struct home home;
            if (!target_home(bench, process, &home)) return;
            for (int size = 0; size < options->blocks.count; size++) {
                struct bench one = {.options = options, .blocks = options->blocks.values[size]};
                (void)fprintf(to, "%lld %d %s %lld %lld %lld %lld\n", (long long)options->processes.values[i], process,
                              home.path, (long long)home.offset, (long long)options->file_bytes,
                              (long long)one.blocks, (long long)region_bytes(&one));
            }
        }
    }
}
