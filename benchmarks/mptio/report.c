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

static void write_tests(FILE *to, const struct run *run, const struct result *results) {
    char record[32];
    (void)snprintf(record, sizeof record, "%.10g", (double)run->plan.record_bytes / 1024);
    (void)fprintf(to,
                  "%-10s %8s %8s %11s %11s %10s %8s\n"
                  "---------- -------- -------- ----------- ----------- ---------- --------\n",
                  "Test Name", "Recsz", "Tot_thrd", "Rate MB/s", "E-Rate", "E-Time", "%DtVar");
    for (int i = 0; i < run->pass_count; i++) {
        const struct result *of = results + (size_t)i * (size_t)run->plan.processes;
        double bytes = 0;
        double longest = of[0].seconds;
        double shortest = of[0].seconds;
        double elapsed = 0;
        for (int process = 0; process < run->plan.processes; process++) {
            bytes += of[process].bytes;
            if (of[process].seconds > longest) longest = of[process].seconds;
            if (of[process].seconds < shortest) shortest = of[process].seconds;
            if (of[process].elapsed > elapsed) elapsed = of[process].elapsed;
        }
        (void)fprintf(to, "%-10s %8s %8d %11.2f %11.2f %10.2f %8.2f\n", test_name(run->passes[i].test), record,
                      run->plan.processes * run->plan.threads, rate(bytes, longest),
                      rate(bytes, elapsed), elapsed, percent(longest - shortest, elapsed));
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

static void write_notes(FILE *to, const struct run *run, int direct_refused_count) {
    const struct options *options = run->options;
    const struct plan *plan = &run->plan;
    if (plan->threads != options->threads) {
        (void)fprintf(to, "Note: %d threads per process instead of %lld, as many on each device\n",
                      plan->threads, (long long)options->threads);
    }
    if (plan->record_bytes != options->record_bytes || plan->offset != options->offset) {
        (void)fprintf(to, "Note: record size %lld and offset %lld, multiples of the device's blocks\n",
                      (long long)plan->record_bytes, (long long)plan->offset);
    }
    const bool is_global = options->global_bytes != 0;
    const int64_t asked = is_global ? options->global_bytes : options->process_bytes;
    const int64_t made = plan_process_bytes(plan) * (is_global ? plan->processes : 1);
    if (asked != made) {
        (void)fprintf(to, "Note: %lld bytes %s instead of %lld, whole records for each thread\n",
                      (long long)made, is_global ? "in all" : "per process", (long long)asked);
    }
    if (options->rotate && plan->processes == 1) {
        (void)fputs("Note: -r: there is one process, nothing to rotate\n", to);
    }
    if (direct_refused_count > 0) {
        (void)fprintf(to, "Note: -I: O_DIRECT was refused in %d of %d processes, which used the page cache\n",
                      direct_refused_count, plan->processes);
    }
    if (options->check) {
        (void)fputs("Note: -C: the writing tests made the pattern within their time; all checks passed\n", to);
    }
    if (run->traces.files != NULL) {
        (void)fputs("Note: MPTIO_TRACE was set: the tests wrote a trace within their time\n", to);
    }
}

void report_write(struct report *report, const struct run *run, const struct result *results, int argc,
                  char **argv, int direct_refused_count) {
    FILE *to = report->file;
    write_header(to, &run->plan);
    write_tests(to, run, results);
    write_nodes(to, run, results);
    write_raw(to, run, results);
    report_command(to, argc, argv);
    write_notes(to, run, direct_refused_count);
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
