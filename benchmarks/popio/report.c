#include "popio.h"

#define MIB 1048576.0

/* All processes of a pass together. */
struct whole {
    double bytes;
    double requests;
    double elapsed; /* The longest, as all below. */
    double open_seconds;
    double io_seconds;
    double close_seconds;
    double longest;
    double shortest;
};

static double larger(double a, double b) {
    return a > b ? a : b;
}

static struct whole whole_of(const struct pass *pass) {
    struct whole whole = {.shortest = pass->results[0].seconds};
    for (int process = 0; process < job.count; process++) {
        const struct result *of = &pass->results[process];
        whole.bytes += of->bytes;
        whole.requests += of->requests;
        whole.elapsed = larger(whole.elapsed, of->elapsed);
        whole.open_seconds = larger(whole.open_seconds, of->open_seconds);
        whole.io_seconds = larger(whole.io_seconds, of->io_seconds);
        whole.close_seconds = larger(whole.close_seconds, of->close_seconds);
        whole.longest = larger(whole.longest, of->seconds);
        if (of->seconds < whole.shortest) whole.shortest = of->seconds;
    }
    return whole;
}

/* Rates are 0 where the clock saw no time. */
static double rate(const struct whole *whole) {
    return whole->elapsed > 0 ? whole->bytes / MIB / whole->elapsed : 0;
}

static double spread(const struct whole *whole) {
    return whole->elapsed > 0 ? 100 * (whole->longest - whole->shortest) / whole->elapsed : 0;
}

static void write_header(FILE *to, const struct run *run) {
    char sizes[4][48];
    (void)snprintf(sizes[0], sizeof *sizes, "%lldx%lld", (long long)options.columns, (long long)options.rows);
    (void)snprintf(sizes[1], sizeof *sizes, "%lldx%lld", (long long)run->layout.grid.x, (long long)run->layout.grid.y);
    (void)snprintf(sizes[2], sizeof *sizes, "%lldx%lld", (long long)run->layout.tile.x, (long long)run->layout.tile.y);
    (void)snprintf(sizes[3], sizeof *sizes, "%.10g",
                   (double)options.columns * (double)options.rows * sizeof(double) / MIB);
    (void)fprintf(to,
                  "%-11s %10s %6s %8s %9s %11s %11s\n"
                  "----------- ---------- ------ -------- --------- ----------- -----------\n"
                  "%-11s %10s %6lld %8d %9s %11s %11d\n\n",
                  "Array", "Array (MB)", "Arrays", "Num_proc", "Grid", "Tile", "Pieces/proc", sizes[0], sizes[3],
                  (long long)options.arrays, job.count, sizes[1], sizes[2], run->write_share.count);
}

static const char *what(const struct pass *pass) {
    return pass->is_write ? "Write" : "Read";
}

static void write_passes(FILE *to, const struct run *run) {
    (void)fprintf(to,
                  "%-11s %-5s %4s %10s %10s %10s %9s %9s %9s %8s\n"
                  "----------- ----- ---- ---------- ---------- ---------- --------- --------- --------- --------\n",
                  "Method", "What", "Iter", "Requests", "Rate MB/s", "E-Time", "Open", "I/O", "Close", "%DtVar");
    for (int i = 0; i < run->pass_count; i++) {
        const struct pass *pass = &run->passes[i];
        const struct whole whole = whole_of(pass);
        (void)fprintf(to, "%-11s %-5s %4d %10.0f %10.2f %10.6f %9.6f %9.6f %9.6f %8.2f\n", method_name(pass->method),
                      what(pass), pass->iteration, whole.requests, rate(&whole), whole.elapsed, whole.open_seconds,
                      whole.io_seconds, whole.close_seconds, spread(&whole));
    }
}

/* Mean and range of the iterations of a method. */
static void write_means(FILE *to, const struct run *run) {
    if (options.iterations == 1) return;
    (void)fprintf(to,
                  "\nRATES OF ALL ITERATIONS\n%-11s %-5s %10s %10s %10s\n"
                  "----------- ----- ---------- ---------- ----------\n",
                  "Method", "What", "Mean", "Lowest", "Highest");
    for (int kind = 0; kind < 2 * METHOD_COUNT; kind++) {
        double sum = 0;
        double lowest = 0;
        double highest = 0;
        int count = 0;
        const struct pass *last = NULL;
        for (int i = 0; i < run->pass_count; i++) {
            const struct pass *pass = &run->passes[i];
            if ((int)pass->method != kind / 2 || pass->is_write != (kind % 2 == 0)) continue;
            const struct whole whole = whole_of(pass);
            const double own = rate(&whole);
            if (count == 0 || own < lowest) lowest = own;
            highest = larger(highest, own);
            sum += own;
            count++;
            last = pass;
        }
        if (last == NULL) continue;
        (void)fprintf(to, "%-11s %-5s %10.2f %10.2f %10.2f\n", method_name(last->method), what(last), sum / count,
                      lowest, highest);
    }
}

static void write_raw(FILE *to, const struct run *run) {
    (void)fputs("\nRAW TIMES\n"
                "# method what iteration process bytes requests open_seconds io_seconds close_seconds seconds "
                "system_seconds elapsed_seconds\n",
                to);
    for (int i = 0; i < run->pass_count; i++) {
        const struct pass *pass = &run->passes[i];
        for (int process = 0; process < job.count; process++) {
            const struct result *of = &pass->results[process];
            (void)fprintf(to, "%s %s %d %d %.0f %.0f %.9f %.9f %.9f %.9f %.6f %.9f\n", method_name(pass->method),
                          what(pass), pass->iteration, process, of->bytes, of->requests, of->open_seconds,
                          of->io_seconds, of->close_seconds, of->seconds, of->system_seconds, of->elapsed);
        }
    }
}

/* Processes that have no tile. */
static int idle_count(const struct run *run) {
    int count = 0;
    for (int process = 0; process < job.count; process++) {
        const int64_t x = process % run->layout.grid.x * run->layout.tile.x;
        const int64_t y = process / run->layout.grid.x * run->layout.tile.y;
        count += x >= options.columns || y >= options.rows;
    }
    return count;
}

static void write_notes(FILE *to, const struct run *run) {
    const int idle = idle_count(run);
    if (idle > 0) (void)fprintf(to, "Note: %d processes have no tile\n", idle);
    for (int i = 0; i < options.hint_count; i++) {
        (void)fprintf(to, "Note: hint %s\n", options.hints[i]);
    }
    if (options.shift) (void)fputs("Note: -s: process P read what process P+1 wrote\n", to);
    if (options.sync) (void)fputs("Note: -S: MPI_File_sync is in the times of writing\n", to);
    if (options.only_write) {
        (void)fputs("Note: -w: nothing was read, and nothing compared\n", to);
    } else {
        (void)fputs("Note: all elements that were read are right\n", to);
    }
}

void report_write(FILE *to, const struct run *run, int argc, char **argv) {
    write_header(to, run);
    write_passes(to, run);
    write_means(to, run);
    write_raw(to, run);
    report_command(to, argc, argv);
    write_notes(to, run);
}

static void json_pair(struct json *json, const char *name, const struct pair *pair) {
    json_array(json, name);
    json_integer(json, NULL, pair->x);
    json_integer(json, NULL, pair->y);
    json_end(json);
}

static void json_pass(struct json *json, const struct pass *pass) {
    const struct whole whole = whole_of(pass);
    json_object(json, NULL);
    json_text(json, "method", method_word(pass->method));
    json_text(json, "what", pass->is_write ? "write" : "read");
    json_integer(json, "iteration", pass->iteration);
    json_number(json, "bytes", whole.bytes);
    json_number(json, "requests", whole.requests);
    json_number(json, "elapsed_seconds", whole.elapsed);
    json_number(json, "mib_per_second", rate(&whole));
    json_number(json, "dtvar_percent", spread(&whole));
    json_flag(json, "verified", !pass->is_write);
    json_array(json, "processes");
    for (int process = 0; process < job.count; process++) {
        const struct result *of = &pass->results[process];
        JSON_ROW(json, "process", process, {"bytes", of->bytes}, {"requests", of->requests},
                 {"open_seconds", of->open_seconds}, {"io_seconds", of->io_seconds},
                 {"close_seconds", of->close_seconds}, {"seconds", of->seconds},
                 {"system_seconds", of->system_seconds}, {"elapsed_seconds", of->elapsed});
    }
    json_end(json);
    json_end(json);
}

void result_write(struct json *json, const struct run *run) {
    json_pair(json, "grid", &run->layout.grid);
    json_pair(json, "tile", &run->layout.tile);
    json_integer(json, "processes_without_tile", idle_count(run));
    json_array(json, "hints");
    for (int i = 0; i < options.hint_count; i++) {
        json_text(json, NULL, options.hints[i]);
    }
    json_end(json);
    json_array(json, "results");
    for (int i = 0; i < run->pass_count; i++) {
        json_pass(json, &run->passes[i]);
    }
    json_end(json);
}
