#include <stddef.h>

#include "mdmark.h"

/* Powers of two that a printed histogram has columns for. */
enum { BUCKETS = 48 };

const char *test_name(enum test test) {
    static const char *const names[TEST_COUNT] = {"Make", "Scan", "Update", "Statistics", "Mix", "Delete", "Measure"};
    return names[test];
}

/* Rates are 0 where the clock saw no time. */
static double rate(double operations, double seconds) {
    return seconds > 0 ? operations / seconds : 0;
}

/* All processes of a test together. */
struct whole {
    struct result sum;
    double elapsed;  /* The longest. */
    double longest;
    double shortest;
};

static struct whole whole_of(const struct result *results) {
    struct whole whole = {.longest = results[0].seconds, .shortest = results[0].seconds};
    for (int process = 0; process < job.count; process++) {
        const struct result *of = &results[process];
        whole.sum.files += of->files;
        whole.sum.directories += of->directories;
        whole.sum.bytes += of->bytes;
        whole.sum.operations += of->operations;
        whole.sum.system_seconds += of->system_seconds;
        if (of->elapsed > whole.elapsed) whole.elapsed = of->elapsed;
        if (of->seconds > whole.longest) whole.longest = of->seconds;
        if (of->seconds < whole.shortest) whole.shortest = of->seconds;
    }
    return whole;
}

static double spread(const struct whole *whole) {
    return whole->elapsed > 0 ? 100 * (whole->longest - whole->shortest) / whole->elapsed : 0;
}

static void write_header(FILE *to, const struct run *run) {
    if (options.measure != NULL) {
        (void)fprintf(to, "Tree measured: %s\n\n", run->root);
        return;
    }
    const struct plan *plan = &run->plan;
    (void)fprintf(to,
                  "%8s %20s %10s %11s %14s %6s\n"
                  "-------- -------------------- ---------- ----------- -------------- ------\n"
                  "%8d %20lld %10lld %11lld %14lld %6d\n\n",
                  "Num_proc", "Seed", "Files", "Directories", "Bytes", "Levels", job.count, (long long)options.seed,
                  (long long)plan->files, (long long)(plan->count - 1), (long long)plan->bytes, plan->levels);
}

static void write_tests(FILE *to, const struct run *run) {
    (void)fprintf(to,
                  "%-10s %10s %11s %11s %12s %14s %8s\n"
                  "---------- ---------- ----------- ----------- ------------ -------------- --------\n",
                  "Test", "Files", "Directories", "Operations", "E-Time", "Operations/s", "%DtVar");
    for (int i = 0; i < run->test_count; i++) {
        const struct whole whole = whole_of(run->results[i]);
        (void)fprintf(to, "%-10s %10.0f %11.0f %11.0f %12.6f %14.2f %8.2f\n", test_name(run->tests[i]),
                      whole.sum.files, whole.sum.directories, whole.sum.operations, whole.elapsed,
                      rate(whole.sum.operations, whole.elapsed), spread(&whole));
    }
}

static bool mix_was_run(const struct run *run) {
    for (int i = 0; i < run->test_count; i++) {
        if (run->tests[i] == MIX) return true;
    }
    return false;
}

/* Sums of calls of all subprocesses. */
static struct mixed mixed_sum(const struct run *run) {
    struct mixed sum = {0};
    for (int64_t i = 0; i < job.count * options.mix_processes; i++) {
        const struct mixed *of = &run->mixed[i];
        for (int call = 0; call < CALL_COUNT; call++) {
            sum.calls[call] += of->calls[call];
            sum.refused[call] += of->refused[call];
        }
        if (of->seconds > sum.seconds) sum.seconds = of->seconds;
    }
    return sum;
}

static void write_mix(FILE *to, const struct run *run) {
    if (!mix_was_run(run)) return;
    const struct mixed sum = mixed_sum(run);
    (void)fprintf(to,
                  "\nMIX CALLS (%lld subprocesses of each process)\n%-10s %12s %10s %14s\n"
                  "---------- ------------ ---------- --------------\n",
                  (long long)options.mix_processes, "Call", "Calls", "Refused", "Calls/s");
    for (int call = 0; call < CALL_COUNT; call++) {
        (void)fprintf(to, "%-10s %12.0f %10.0f %14.2f\n", call_name((enum call)call), sum.calls[call],
                      sum.refused[call], rate(sum.calls[call], sum.seconds));
    }
}

/* 0, then a bucket for each power of two. */
static int bucket_of(int bin) {
    const int64_t first = bin_first(bin);
    return first == 0 ? 0 : 64 - __builtin_clzll((unsigned long long)first);
}

static void buckets_add(double buckets[BUCKETS], const struct histogram *histogram) {
    for (int bin = 0; bin < BINS; bin++) {
        buckets[bucket_of(bin)] += histogram->counts[bin];
    }
}

static double total(const double buckets[BUCKETS]) {
    double sum = 0;
    for (int i = 0; i < BUCKETS; i++) {
        sum += buckets[i];
    }
    return sum;
}

static void write_row(FILE *to, const char *name, const double buckets[BUCKETS], int columns) {
    (void)fprintf(to, "%-5s %11.0f", name, total(buckets));
    for (int i = 0; i < columns; i++) {
        (void)fprintf(to, " %9.0f", buckets[i]);
    }
    (void)fputc('\n', to);
}

/* How many directories of each level have how many of `what`; `at` is where its histogram is. */
static void write_histogram(FILE *to, const struct tree_counts *counts, const char *what, size_t at) {
    double levels[LEVELS_MAX][BUCKETS] = {{0}};
    double all[BUCKETS] = {0};
    int columns = 1;
    for (int level = 0; level < LEVELS_MAX; level++) {
        const struct histogram *of = (const struct histogram *)((const char *)&counts->levels[level] + at);
        buckets_add(levels[level], of);
        buckets_add(all, of);
    }
    for (int i = 0; i < BUCKETS; i++) {
        if (all[i] > 0) columns = i + 1;
    }
    (void)fprintf(to, "\n%s IN A DIRECTORY\n%-5s %11s", what, "Level", "Directories");
    for (int i = 0; i < columns; i++) {
        char text[32];
        const int64_t first = i == 0 ? 0 : INT64_C(1) << (i - 1);
        (void)snprintf(text, sizeof text, i < 2 ? "%lld" : "%lld+", (long long)first);
        (void)fprintf(to, " %9s", text);
    }
    (void)fputs("\n----- -----------", to);
    for (int i = 0; i < columns; i++) {
        (void)fputs(" ---------", to);
    }
    (void)fputc('\n', to);
    for (int level = 0; level < LEVELS_MAX; level++) {
        char name[16];
        (void)snprintf(name, sizeof name, "%d", level);
        if (total(levels[level]) > 0) write_row(to, name, levels[level], columns);
    }
    write_row(to, "all", all, columns);
}

static void write_statistics(FILE *to, const struct run *run) {
    if (run->counts == NULL) return;
    write_histogram(to, run->counts, "ENTRIES", offsetof(struct level_counts, entries));
    write_histogram(to, run->counts, "SUBDIRECTORIES", offsetof(struct level_counts, directories));
}

static void write_raw(FILE *to, const struct run *run) {
    (void)fputs("\nRAW TIMES\n"
                "# test process files directories bytes operations seconds system_seconds elapsed_seconds\n",
                to);
    for (int i = 0; i < run->test_count; i++) {
        for (int process = 0; process < job.count; process++) {
            const struct result *of = &run->results[i][process];
            (void)fprintf(to, "%s %d %.0f %.0f %.0f %.0f %.9f %.6f %.9f\n", test_name(run->tests[i]), process,
                          of->files, of->directories, of->bytes, of->operations, of->seconds, of->system_seconds,
                          of->elapsed);
        }
    }
    if (!mix_was_run(run)) return;
    (void)fputs("\nRAW CALLS\n# process subprocess seconds", to);
    for (int call = 0; call < CALL_COUNT; call++) {
        (void)fprintf(to, " %s", call_name((enum call)call));
    }
    (void)fputc('\n', to);
    for (int64_t i = 0; i < job.count * options.mix_processes; i++) {
        const struct mixed *of = &run->mixed[i];
        (void)fprintf(to, "%lld %lld %.9f", (long long)(i / options.mix_processes),
                      (long long)(i % options.mix_processes), of->seconds);
        for (int call = 0; call < CALL_COUNT; call++) {
            (void)fprintf(to, " %.0f", of->calls[call]);
        }
        (void)fputc('\n', to);
    }
}

static void write_notes(FILE *to, const struct run *run) {
    const struct plan *plan = &run->plan;
    if (options.measure != NULL) {
        (void)fprintf(to, "Note: the distributions are in %s\n", options.output);
        if (run->skipped > 0) {
            (void)fprintf(to, "Note: %.0f directories could not be read and are not in it\n", run->skipped);
        }
        return;
    }
    if (plan->limit != NULL) {
        (void)fprintf(to, "Note: %s ended the tree; its last directories have fewer entries than were drawn\n",
                      plan->limit);
    }
    if (plan->is_shallow) (void)fputs("Note: -l left out directories that were drawn\n", to);
    if (options.hollow) (void)fputs("Note: -z: files have a size, but no data\n", to);
    (void)fprintf(to, "Note: %s %s\n", run->root, run->made || options.existing ? "is kept" : "is removed");
}

void report_write(FILE *to, const struct run *run, int argc, char **argv) {
    write_header(to, run);
    write_tests(to, run);
    write_mix(to, run);
    write_statistics(to, run);
    write_raw(to, run);
    report_command(to, argc, argv);
    write_notes(to, run);
}

static void json_histogram(struct json *json, const char *name, const struct histogram *histogram) {
    json_array(json, name);
    for (int bin = 0; bin < BINS; bin++) {
        if (histogram->counts[bin] <= 0) continue;
        json_object(json, NULL);
        json_integer(json, "first", bin_first(bin));
        json_integer(json, "last", bin_last(bin));
        json_number(json, "count", histogram->counts[bin]);
        json_end(json);
    }
    json_end(json);
}

static void json_counts(struct json *json, const struct tree_counts *counts) {
    json_object(json, "statistics");
    json_array(json, "levels");
    for (int level = 0; level < LEVELS_MAX; level++) {
        double buckets[BUCKETS] = {0};
        const struct level_counts *of = &counts->levels[level];
        buckets_add(buckets, &of->entries);
        if (total(buckets) <= 0) continue;
        json_object(json, NULL);
        json_integer(json, "level", level);
        json_histogram(json, "files", &of->files);
        json_histogram(json, "directories", &of->directories);
        json_histogram(json, "entries", &of->entries);
        json_end(json);
    }
    json_end(json);
    json_histogram(json, "sizes", &counts->sizes);
    json_end(json);
}

static void json_calls(struct json *json, const char *name, const double calls[CALL_COUNT]) {
    json_object(json, name);
    for (int call = 0; call < CALL_COUNT; call++) {
        json_number(json, call_name((enum call)call), calls[call]);
    }
    json_end(json);
}

static void json_mix(struct json *json, const struct run *run) {
    json_array(json, "subprocesses");
    for (int64_t i = 0; i < job.count * options.mix_processes; i++) {
        json_object(json, NULL);
        json_integer(json, "process", i / options.mix_processes);
        json_integer(json, "subprocess", i % options.mix_processes);
        json_number(json, "seconds", run->mixed[i].seconds);
        json_calls(json, "calls", run->mixed[i].calls);
        json_calls(json, "refused", run->mixed[i].refused);
        json_end(json);
    }
    json_end(json);
}

static void json_test(struct json *json, const struct run *run, int index) {
    const struct whole whole = whole_of(run->results[index]);
    json_object(json, NULL);
    json_text(json, "test", test_name(run->tests[index]));
    json_number(json, "files", whole.sum.files);
    json_number(json, "directories", whole.sum.directories);
    json_number(json, "bytes", whole.sum.bytes);
    json_number(json, "operations", whole.sum.operations);
    json_number(json, "elapsed_seconds", whole.elapsed);
    json_number(json, "operations_per_second", rate(whole.sum.operations, whole.elapsed));
    json_number(json, "dtvar_percent", spread(&whole));
    json_array(json, "processes");
    for (int process = 0; process < job.count; process++) {
        const struct result *of = &run->results[index][process];
        JSON_ROW(json, "process", process, {"files", of->files}, {"directories", of->directories},
                 {"bytes", of->bytes}, {"operations", of->operations}, {"seconds", of->seconds},
                 {"system_seconds", of->system_seconds}, {"elapsed_seconds", of->elapsed});
    }
    json_end(json);
    if (run->tests[index] == MIX) json_mix(json, run);
    json_end(json);
}

void result_write(struct json *json, const struct run *run) {
    if (options.measure == NULL) {
        json_object(json, "tree");
        json_integer(json, "files", run->plan.files);
        json_integer(json, "directories", run->plan.count - 1);
        json_integer(json, "bytes", run->plan.bytes);
        json_integer(json, "levels", run->plan.levels);
        json_text(json, "ended_by", run->plan.limit);
        json_end(json);
    } else {
        json_number(json, "directories_skipped", run->skipped);
    }
    json_array(json, "results");
    for (int i = 0; i < run->test_count; i++) {
        json_test(json, run, i);
    }
    json_end(json);
    if (run->counts != NULL) json_counts(json, run->counts);
}
