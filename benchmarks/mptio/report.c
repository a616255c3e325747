#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "mptio.h"

#define MIB 1048576.0

/* Rates are 0 where the clock saw no time. */
static double rate(double bytes, double seconds) {
    return seconds > 0 ? bytes / MIB / seconds : 0;
}

static double percent(double part, double whole) {
    return whole > 0 ? 100 * part / whole : 0;
}

static void write_header(FILE *to, const struct plan *plan) {
    const int64_t records = plan_process_bytes(plan) / plan->record_bytes;
    char size[32];
    char record[32];
    (void)snprintf(size, sizeof size, "%.10g", (double)plan_process_bytes(plan) / MIB);
    (void)snprintf(record, sizeof record, "%.10g", (double)plan->record_bytes / 1024);
    (void)fprintf(to,
                  "%9s %10s %8s %9s %8s %8s %8s\n"
                  "--------- ---------- -------- --------- -------- -------- --------\n"
                  "%9s %10s %8d %9d %8d %8lld %8lld\n\n",
                  "Size (MB)", "Recsz (KB)", "Num_proc", "Thrd/proc", "Tot_thrd", "Rec/proc", "Rec/th", size,
                  record, plan->processes, plan->threads, plan->processes * plan->threads,
                  (long long)records, (long long)plan->records);
}

/* What the table says of a test. */
struct sums {
    double bytes;
    double longest; /* Seconds of a process. */
    double shortest;
    double elapsed;
};

static struct sums sums_of(const struct run *run, const struct result *results, int pass) {
    const struct result *of = results + (size_t)pass * (size_t)run->plan.processes;
    struct sums sums = {.longest = of[0].seconds, .shortest = of[0].seconds};
    for (int process = 0; process < run->plan.processes; process++) {
        sums.bytes += of[process].bytes;
        if (of[process].seconds > sums.longest) sums.longest = of[process].seconds;
        if (of[process].seconds < sums.shortest) sums.shortest = of[process].seconds;
        if (of[process].elapsed > sums.elapsed) sums.elapsed = of[process].elapsed;
    }
    return sums;
}

static double spread(const struct sums *sums) {
    return percent(sums->longest - sums->shortest, sums->elapsed);
}

static void write_tests(FILE *to, const struct run *run, const struct result *results) {
    char record[32];
    (void)snprintf(record, sizeof record, "%.10g", (double)run->plan.record_bytes / 1024);
    (void)fprintf(to,
                  "%-10s %8s %8s %11s %11s %10s %8s\n"
                  "---------- -------- -------- ----------- ----------- ---------- --------\n",
                  "Test Name", "Recsz", "Tot_thrd", "Rate MB/s", "E-Rate", "E-Time", "%DtVar");
    for (int i = 0; i < run->pass_count; i++) {
        const struct sums sums = sums_of(run, results, i);
        (void)fprintf(to, "%-10s %8s %8d %11.2f %11.2f %10.2f %8.2f\n", test_name(run->passes[i].test), record,
                      run->plan.processes * run->plan.threads, rate(sums.bytes, sums.longest),
                      rate(sums.bytes, sums.elapsed), sums.elapsed, spread(&sums));
    }
}

static void write_rule(FILE *to, int tests) {
    (void)fputs("|------|", to);
    for (int i = 0; i < tests; i++) {
        (void)fputs("------------------------------|", to);
    }
    (void)fputc('\n', to);
}

static void write_nodes(FILE *to, const struct run *run, const struct result *results) {
    (void)fputs("\nNODE DETAILS\n", to);
    write_rule(to, run->pass_count);
    (void)fputs("| Node |", to);
    for (int i = 0; i < run->pass_count; i++) {
        (void)fprintf(to, "  %-28s|", test_name(run->passes[i].test));
    }
    (void)fputs("\n|      |", to);
    for (int i = 0; i < run->pass_count; i++) {
        (void)fprintf(to, " %9s %9s %8s |", "Rate", "Time", "%Sys");
    }
    (void)fputc('\n', to);
    write_rule(to, run->pass_count);
    for (int process = 0; process < run->plan.processes; process++) {
        (void)fprintf(to, "|%5d |", process);
        for (int i = 0; i < run->pass_count; i++) {
            const struct result *of = results + (size_t)i * (size_t)run->plan.processes + process;
            (void)fprintf(to, " %9.2f %9.2f %8.2f |", rate(of->bytes, of->seconds), of->seconds,
                          percent(of->system_seconds, of->seconds));
        }
        (void)fputc('\n', to);
    }
    write_rule(to, run->pass_count);
}

/* What the tables are computed from. */
static void write_raw(FILE *to, const struct run *run, const struct result *results) {
    (void)fputs("\nRAW TIMES\n"
                "# test process bytes seconds system_seconds elapsed_seconds\n",
                to);
    for (int i = 0; i < run->pass_count; i++) {
        for (int process = 0; process < run->plan.processes; process++) {
            const struct result *of = results + (size_t)i * (size_t)run->plan.processes + process;
            (void)fprintf(to, "%s %d %.0f %.12f %.6f %.12f\n", test_name(run->passes[i].test), process,
                          of->bytes, of->seconds, of->system_seconds, of->elapsed);
        }
    }
}

/* What a reader of the figures must know, one after another: each is handed to `say`. */
static void notes(const struct run *run, void (*say)(void *to, const char *note), void *to) {
    const struct options *options = run->options;
    const struct plan *plan = &run->plan;
    char note[160];
    if (plan->threads != options->threads) {
        (void)snprintf(note, sizeof note, "%d threads per process instead of %lld, as many on each device",
                       plan->threads, (long long)options->threads);
        say(to, note);
    }
    if (plan->record_bytes != options->record_bytes || plan->offset != options->offset) {
        (void)snprintf(note, sizeof note, "record size %lld and offset %lld, multiples of the device's blocks",
                       (long long)plan->record_bytes, (long long)plan->offset);
        say(to, note);
    }
    const bool is_global = options->global_bytes != 0;
    const int64_t asked = is_global ? options->global_bytes : options->process_bytes;
    const int64_t made = plan_process_bytes(plan) * (is_global ? plan->processes : 1);
    if (asked != made) {
        (void)snprintf(note, sizeof note, "%lld bytes %s instead of %lld, whole records for each thread",
                       (long long)made, is_global ? "in all" : "per process", (long long)asked);
        say(to, note);
    }
    if (options->rotate && plan->processes == 1) say(to, "-r: there is one process, nothing to rotate");
    if (run->direct_refused_count > 0) {
        (void)snprintf(note, sizeof note, "-I: O_DIRECT was refused in %d of %d processes, which used the page cache",
                       run->direct_refused_count, plan->processes);
        say(to, note);
    }
    if (options->check) say(to, "-C: the writing tests made the pattern within their time; all checks passed");
    if (run->traces.files != NULL) say(to, "MPTIO_TRACE was set: the tests wrote a trace within their time");
}

static void note_print(void *to, const char *note) {
    (void)fprintf(to, "Note: %s\n", note);
}

static void note_json(void *to, const char *note) {
    json_text(to, NULL, note);
}

void report_write(FILE *to, const struct run *run, const struct result *results, int argc, char **argv) {
    write_header(to, &run->plan);
    write_tests(to, run, results);
    write_nodes(to, run, results);
    write_raw(to, run, results);
    report_command(to, argc, argv);
    notes(run, note_print, to);
}

/* What the options of own kinds say, and who worked where in the end. */
static void json_plan(struct json *json, const struct run *run) {
    static const char *const modes[] = {"global", "process", "thread", "devices"};
    const struct plan *plan = &run->plan;
    json_text(json, "mode", modes[plan->mode]);
    json_array(json, "devices");
    for (int i = 0; i < run->options->device_count; i++) {
        json_text(json, NULL, run->options->devices[i]);
    }
    json_end(json);
    json_flag(json, "overlap_processes", plan->overlap_processes);
    json_flag(json, "overlap_threads", plan->overlap_threads);
    json_integer(json, "processes", plan->processes);
    json_integer(json, "threads_per_process", plan->threads);
    json_integer(json, "records_per_thread", plan->records);
    json_integer(json, "record_bytes", plan->record_bytes);
    json_integer(json, "offset", plan->offset);
    json_integer(json, "bytes_per_process", plan_process_bytes(plan));
    json_text(json, "directory", plan->mode == MODE_DEVICES ? NULL : run->place.directory);
}

static void json_pass(struct json *json, const struct run *run, const struct result *results, int pass) {
    const struct sums sums = sums_of(run, results, pass);
    json_object(json, NULL);
    json_text(json, "test", test_name(run->passes[pass].test));
    json_integer(json, "rotations", run->passes[pass].rotations);
    json_number(json, "bytes", sums.bytes);
    json_number(json, "seconds", sums.longest);
    json_number(json, "elapsed_seconds", sums.elapsed);
    json_number(json, "rate_mb_s", rate(sums.bytes, sums.longest));
    json_number(json, "e_rate_mb_s", rate(sums.bytes, sums.elapsed));
    json_number(json, "dtvar_percent", spread(&sums));
    json_array(json, "processes");
    for (int process = 0; process < run->plan.processes; process++) {
        const struct result *of = results + (size_t)pass * (size_t)run->plan.processes + process;
        JSON_ROW(json, "process", process, {"bytes", of->bytes}, {"seconds", of->seconds},
                 {"system_seconds", of->system_seconds}, {"elapsed_seconds", of->elapsed});
    }
    json_end(json);
    json_end(json);
}

void json_write(struct json *json, const struct run *run, const struct result *results) {
    json_plan(json, run);
    json_array(json, "notes");
    notes(run, note_json, json);
    json_end(json);
    json_array(json, "results");
    for (int i = 0; i < run->pass_count; i++) {
        json_pass(json, run, results, i);
    }
    json_end(json);
}

void plan_write(FILE *to, const struct run *run) {
    const struct plan *plan = &run->plan;
    int rotations = 0;
    for (int test = 0; test < TEST_COUNT; test++) {
        if (run->options->skip[test]) continue;
        for (int process = 0; process < plan->processes; process++) {
            for (int thread = 0; thread < plan->threads; thread++) {
                const struct segment segment = plan_segment(plan, process, thread, rotations);
                char path[PATH_MAX];
                if (!target_path(run, &segment, path)) return;
                (void)fprintf(to, "%d %d %d %s %lld %lld %lld\n", test, process, thread, path,
                              (long long)segment.offset, (long long)plan->record_bytes,
                              (long long)plan->records);
            }
        }
        if (run->options->rotate) rotations++;
    }
}
