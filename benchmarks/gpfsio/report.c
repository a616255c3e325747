#include "gpfsio.h"

#define MIB 1048576.0

double rate_of(double bytes, double seconds) {
    return seconds > 0 ? bytes / MIB / seconds : 0;
}

static double percent(double part, double whole) {
    return whole > 0 ? 100 * part / whole : 0;
}

struct shares shares_of(const struct node_cpu *cpu) {
    return (struct shares){.user = percent(cpu->user, cpu->total), .system = percent(cpu->system, cpu->total)};
}

static void shares_add(struct shares *sum, struct shares part, int parts) {
    sum->user += part.user / parts;
    sum->system += part.system / parts;
}

struct shares shares_of_nodes(const struct pass *pass) {
    struct shares mean = {0};
    for (int node = 0; node < pass->cell.nodes; node++) {
        shares_add(&mean, shares_of(&pass->nodes[node].node), pass->cell.nodes);
    }
    return mean;
}

struct mean mean_of(const struct bench *bench, enum operation operation, struct cell cell) {
    const struct options *options = bench->options;
    const int count = (int)options->runs - (options->trim ? 2 : 0);
    struct mean mean = {0};
    for (int i = 0; i < bench->pass_count; i++) {
        const struct pass *pass = &bench->passes[i];
        if (!pass->counts || pass->operation != operation || pass->cell.nodes != cell.nodes ||
            pass->cell.threads != cell.threads) {
            continue;
        }
        mean.rate += rate_of(pass->bytes, pass->seconds) / count;
        shares_add(&mean.nodes, shares_of_nodes(pass), count);
        for (int server = 0; server < options->server_count; server++) {
            shares_add(&mean.servers[server], shares_of(&pass->servers[server].node), count);
        }
    }
    return mean;
}

static void write_header(FILE *to, const struct bench *bench) {
    const struct options *options = bench->options;
    (void)fprintf(to, "GPFSIO\nRecords: %lld of %lld bytes of each thread; %s; runs: %lld%s\nDirectory: %s\n",
                  (long long)options->records, (long long)options->record_bytes,
                  options->separate  ? "a file for each thread"
                  : options->strided ? "one shared file, strided"
                                     : "one shared file, segmented",
                  (long long)options->runs,
                  options->trim ? ", the highest and the lowest do not count" : "", bench->place.directory);
}

/* A table in the form of the document's Tables 1 to 8. */
static void write_means(FILE *to, const struct bench *bench, enum operation operation) {
    static const char *const titles[OPERATION_COUNT] = {"Write", "Rewrite", "Read"};
    const struct options *options = bench->options;
    (void)fprintf(to, "\nMean %s Performance (MB/s)\n%-12s", titles[operation], "");
    for (int t = 0; t < options->threads.count; t++) {
        const long long threads = (long long)options->threads.values[t];
        (void)fprintf(to, " %5lld %s", threads, threads == 1 ? "Thread " : "Threads");
    }
    (void)fputc('\n', to);
    for (int n = 0; n < options->nodes.count; n++) {
        const long long nodes = (long long)options->nodes.values[n];
        (void)fprintf(to, "%5lld %-6s", nodes, nodes == 1 ? "Node" : "Nodes");
        for (int t = 0; t < options->threads.count; t++) {
            const struct cell cell = {(int)nodes, (int)options->threads.values[t]};
            (void)fprintf(to, " %13.1f", mean_of(bench, operation, cell).rate);
        }
        (void)fputc('\n', to);
    }
}

/* The best cell of a table, and what it took of the processors, as the document's text tells it. */
static void write_peak(FILE *to, const struct bench *bench, enum operation operation) {
    const struct options *options = bench->options;
    struct cell best = {0};
    struct mean peak = {.rate = -1};
    for (int i = 0; i < options->nodes.count * options->threads.count; i++) {
        const struct cell cell = {(int)options->nodes.values[i / options->threads.count],
                                  (int)options->threads.values[i % options->threads.count]};
        const struct mean mean = mean_of(bench, operation, cell);
        if (mean.rate <= peak.rate) continue;
        best = cell;
        peak = mean;
    }
    (void)fprintf(to, "Peak: %.1f MB/s, nodes: %d, threads: %d; CPU of a node: %.1f%% (%.1f%% user, %.1f%% system)\n",
                  peak.rate, best.nodes, best.threads, peak.nodes.user + peak.nodes.system, peak.nodes.user,
                  peak.nodes.system);
    for (int i = 0; i < options->server_count; i++) {
        const struct shares *of = &peak.servers[i];
        (void)fprintf(to, "CPU of the node of server %s@%d: %.1f%% (%.1f%% user, %.1f%% system)\n",
                      options->servers[i].what, options->servers[i].process, of->user + of->system, of->user, of->system);
    }
}

static void write_passes(FILE *to, const struct bench *bench) {
    (void)fprintf(to,
                  "\nRUNS\n%-9s %5s %7s %4s %6s %12s %13s %11s %7s %7s %9s\n"
                  "--------- ----- ------- ---- ------ ------------ ------------- ----------- ------- ------- ---------\n",
                  "Operation", "Nodes", "Threads", "Run", "Counts", "Seconds", "Bytes", "MB/s", "%User", "%Sys",
                  "Clock us");
    for (int i = 0; i < bench->pass_count; i++) {
        const struct pass *pass = &bench->passes[i];
        const struct shares cpu = shares_of_nodes(pass);
        (void)fprintf(to, "%-9s %5d %7d %4d %6s %12.6f %13.0f %11.2f %7.2f %7.2f %9.1f\n",
                      operation_name(pass->operation), pass->cell.nodes, pass->cell.threads, pass->run,
                      pass->counts ? "yes" : "no", pass->seconds, pass->bytes, rate_of(pass->bytes, pass->seconds),
                      cpu.user, cpu.system, pass->clock_error * 1e6);
    }
}

static void write_servers(FILE *to, const struct bench *bench) {
    if (bench->options->server_count == 0) return;
    (void)fprintf(to,
                  "\nSERVERS\n%-9s %5s %7s %4s %-24s %10s %10s %10s %10s\n"
                  "--------- ----- ------- ---- ------------------------ ---------- ---------- ---------- ----------\n",
                  "Operation", "Nodes", "Threads", "Run", "Server", "User s", "Sys s", "Node %User", "Node %Sys");
    for (int i = 0; i < bench->pass_count; i++) {
        const struct pass *pass = &bench->passes[i];
        for (int s = 0; s < bench->options->server_count; s++) {
            const struct server_cpu *of = &pass->servers[s];
            char name[PATH_MAX + 16];
            (void)snprintf(name, sizeof name, "%s@%d", bench->options->servers[s].what,
                           bench->options->servers[s].process);
            const struct shares node = shares_of(&of->node);
            (void)fprintf(to, "%-9s %5d %7d %4d %-24s %10.2f %10.2f %10.2f %10.2f\n", operation_name(pass->operation),
                          pass->cell.nodes, pass->cell.threads, pass->run, name, of->user, of->system,
                          node.user, node.system);
        }
    }
}

static void write_raw(FILE *to, const struct bench *bench) {
    (void)fputs("\nRAW TIMES\n# operation nodes threads run process thread start_seconds end_seconds\n", to);
    for (int i = 0; i < bench->pass_count; i++) {
        const struct pass *pass = &bench->passes[i];
        for (int t = 0; t < pass->cell.nodes * pass->cell.threads; t++) {
            (void)fprintf(to, "%s %d %d %d %d %d %.9f %.9f\n", operation_name(pass->operation), pass->cell.nodes,
                          pass->cell.threads, pass->run, t / pass->cell.threads, t % pass->cell.threads,
                          pass->spans[t].begin, pass->spans[t].end);
        }
    }
    (void)fputs("\nRAW CPU\n# operation nodes threads run process process_user_seconds process_system_seconds "
                "node_user_seconds node_system_seconds node_total_seconds\n",
                to);
    for (int i = 0; i < bench->pass_count; i++) {
        const struct pass *pass = &bench->passes[i];
        for (int node = 0; node < pass->cell.nodes; node++) {
            const struct node_result *of = &pass->nodes[node];
            (void)fprintf(to, "%s %d %d %d %d %.6f %.6f %.2f %.2f %.2f\n", operation_name(pass->operation),
                          pass->cell.nodes, pass->cell.threads, pass->run, node, of->process.user, of->process.system,
                          of->node.user, of->node.system, of->node.total);
        }
    }
}

static void write_notes(FILE *to, const struct bench *bench) {
    const struct options *options = bench->options;
    for (int n = 0; options->rotate && n < options->nodes.count; n++) {
        if (options->nodes.values[n] == 1) (void)fputs("Note: -r: one node has no other to read from\n", to);
    }
    if (options->check) {
        (void)fputs("Note: -C: the pattern was made and compared within the times; all checks passed\n", to);
    }
    if (bench->traces.files != NULL) {
        (void)fputs("Note: GPFSIO_TRACE was set: the tests wrote a trace within their time\n", to);
    }
}

void report_write(FILE *to, const struct bench *bench, int argc, char **argv) {
    write_header(to, bench);
    for (int operation = 0; operation < OPERATION_COUNT; operation++) {
        if (!bench->options->operations[operation]) continue;
        write_means(to, bench, (enum operation)operation);
        write_peak(to, bench, (enum operation)operation);
    }
    write_passes(to, bench);
    write_servers(to, bench);
    write_raw(to, bench);
    report_command(to, argc, argv);
    write_notes(to, bench);
}

void plan_write(FILE *to, const struct bench *bench) {
    const struct options *options = bench->options;
    for (int n = 0; n < options->nodes.count; n++) {
        for (int t = 0; t < options->threads.count; t++) {
            const struct cell cell = {(int)options->nodes.values[n], (int)options->threads.values[t]};
            for (int i = 0; i < OPERATION_COUNT * cell.nodes * cell.threads; i++) {
                const enum operation operation = (enum operation)(i / (cell.nodes * cell.threads));
                const int process = i / cell.threads % cell.nodes;
                const int thread = i % cell.threads;
                const struct region region =
                    layout_region(options, cell, process, thread, layout_is_rotated(options, operation));
                char path[PATH_MAX];
                if (!options->operations[operation]) continue;
                if (!files_path(bench, &region, path)) return;
                (void)fprintf(to, "%s %d %d %d %d %s %lld %lld %lld %lld\n", operation_name(operation), cell.nodes,
                              cell.threads, process, thread, path, (long long)region.offset, (long long)region.step,
                              (long long)options->record_bytes, (long long)options->records);
            }
        }
    }
}
