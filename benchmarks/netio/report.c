#include "netio.h"

#define MIB 1048576.0

static const char *const KIND_NAMES[KIND_COUNT] = {"read", "write"};

/* All processes of a test together; what clients count. */
struct whole {
    double requests[KIND_COUNT];
    double bytes;
    double elapsed;          /* The longest. */
    double client_cpu;       /* Seconds. */
    double server_cpu;
};

static struct whole whole_of(const struct done *done) {
    struct whole whole = {0};
    for (int process = 0; process < job.count; process++) {
        const struct result *of = &done->results[process];
        const double cpu = of->user_seconds + of->system_seconds;
        if (of->elapsed > whole.elapsed) whole.elapsed = of->elapsed;
        if (of->is_server > 0) {
            whole.server_cpu += cpu;
            continue;
        }
        whole.client_cpu += cpu;
        for (int kind = 0; kind < KIND_COUNT; kind++) {
            whole.requests[kind] += of->requests[kind];
            whole.bytes += of->bytes[kind];
        }
    }
    return whole;
}

/* Rates are 0 where the clock saw no time. */
static double per_second(double value, double seconds) {
    return seconds > 0 ? value / seconds : 0;
}

static void write_header(FILE *to, const struct run *run) {
    const int clients = job.count - run->servers;
    (void)fprintf(to,
                  "%8s %8s %12s %6s\n"
                  "-------- -------- ------------ ------\n"
                  "%8d %8d %12lld %6lld\n\n",
                  "Servers", "Clients", "Connections", "Depth", run->servers, clients,
                  (long long)options.connections * clients * run->servers, (long long)options.queue);
}

static void write_tests(FILE *to, const struct run *run) {
    (void)fprintf(to,
                  "%10s %7s %10s %10s %10s %11s %10s %8s %8s\n"
                  "---------- ------- ---------- ---------- ---------- ----------- ---------- -------- --------\n",
                  "Block", "%Writes", "Reads", "Writes", "Rate MB/s", "Requests/s", "E-Time", "Client", "Server");
    for (int i = 0; i < run->done_count; i++) {
        const struct done *done = &run->done[i];
        const struct whole whole = whole_of(done);
        (void)fprintf(to, "%10lld %7lld %10.0f %10.0f %10.2f %11.2f %10.6f %8.3f %8.3f\n", (long long)done->size,
                      (long long)done->write_percent, whole.requests[READ], whole.requests[WRITE],
                      per_second(whole.bytes / MIB, whole.elapsed),
                      per_second(whole.requests[READ] + whole.requests[WRITE], whole.elapsed), whole.elapsed,
                      per_second(whole.client_cpu, whole.elapsed), per_second(whole.server_cpu, whole.elapsed));
    }
    (void)fputs("Client and Server: processors that all of them used.\n", to);
}

static void write_latencies(FILE *to, const struct run *run) {
    (void)fprintf(to,
                  "\nLATENCIES (microseconds)\n"
                  "%10s %7s %-5s %10s %9s %9s %9s %9s %9s %9s %9s %9s\n"
                  "---------- ------- ----- ---------- --------- --------- --------- --------- --------- ---------"
                  " --------- ---------\n",
                  "Block", "%Writes", "What", "Requests", "Mean", "Sigma", "Least", "50%", "90%", "99%", "99.9%",
                  "Most");
    for (int i = 0; i < run->done_count; i++) {
        const struct done *done = &run->done[i];
        for (int kind = 0; kind < KIND_COUNT; kind++) {
            const struct summary of = latency_summary(&done->latencies[kind]);
            if (of.count <= 0) continue;
            (void)fprintf(to, "%10lld %7lld %-5s %10.0f %9.1f %9.1f %9.1f %9.1f %9.1f %9.1f %9.1f %9.1f\n",
                          (long long)done->size, (long long)done->write_percent, KIND_NAMES[kind], of.count,
                          1e6 * of.mean, 1e6 * of.sigma, 1e6 * of.shortest, 1e6 * of.p50, 1e6 * of.p90, 1e6 * of.p99,
                          1e6 * of.p999, 1e6 * of.longest);
        }
    }
}

static void write_raw(FILE *to, const struct run *run) {
    (void)fputs("\nRAW TIMES\n"
                "# block percent process role reads writes read_bytes written_bytes seconds user_seconds system_seconds "
                "elapsed_seconds\n",
                to);
    for (int i = 0; i < run->done_count; i++) {
        for (int process = 0; process < job.count; process++) {
            const struct result *of = &run->done[i].results[process];
            (void)fprintf(to, "%lld %lld %d %s %.0f %.0f %.0f %.0f %.9f %.6f %.6f %.9f\n",
                          (long long)run->done[i].size, (long long)run->done[i].write_percent, process,
                          of->is_server > 0 ? "server" : "client", of->requests[READ], of->requests[WRITE],
                          of->bytes[READ], of->bytes[WRITE], of->seconds, of->user_seconds, of->system_seconds,
                          of->elapsed);
        }
    }
}

void report_write(FILE *to, const struct run *run, int argc, char **argv) {
    write_header(to, run);
    write_tests(to, run);
    write_latencies(to, run);
    write_raw(to, run);
    report_command(to, argc, argv);
    for (int server = 0; server < run->servers; server++) {
        (void)fprintf(to, "Note: server process %d is at %s\n", server,
                      run->endpoints + (size_t)server * sizeof run->address);
    }
    if (options.check) (void)fputs("Note: -C: all blocks were made and compared within the time; all are right\n", to);
}

static void json_summary(struct json *json, const char *name, const struct summary *of) {
    json_object(json, name);
    json_number(json, "count", of->count);
    json_number(json, "mean_seconds", of->mean);
    json_number(json, "sigma_seconds", of->sigma);
    json_number(json, "min_seconds", of->shortest);
    json_number(json, "p50_seconds", of->p50);
    json_number(json, "p90_seconds", of->p90);
    json_number(json, "p99_seconds", of->p99);
    json_number(json, "p999_seconds", of->p999);
    json_number(json, "max_seconds", of->longest);
    json_end(json);
}

static void json_histogram(struct json *json, const char *name, const struct latency *latency) {
    json_array(json, name);
    for (int bin = 0; bin < BINS; bin++) {
        if (latency->counts[bin] <= 0) continue;
        json_array(json, NULL);
        json_number(json, NULL, bin_seconds(bin));
        json_number(json, NULL, latency->counts[bin]);
        json_end(json);
    }
    json_end(json);
}

static void json_process(struct json *json, int process, const struct result *of) {
    json_object(json, NULL);
    json_integer(json, "process", process);
    json_text(json, "role", of->is_server > 0 ? "server" : "client");
    json_number(json, "reads", of->requests[READ]);
    json_number(json, "writes", of->requests[WRITE]);
    json_number(json, "read_bytes", of->bytes[READ]);
    json_number(json, "written_bytes", of->bytes[WRITE]);
    json_number(json, "seconds", of->seconds);
    json_number(json, "user_seconds", of->user_seconds);
    json_number(json, "system_seconds", of->system_seconds);
    json_number(json, "elapsed_seconds", of->elapsed);
    for (int kind = 0; kind < KIND_COUNT && of->is_server <= 0; kind++) {
        json_summary(json, KIND_NAMES[kind], &of->latencies[kind]);
    }
    json_end(json);
}

void result_write(struct json *json, const struct run *run) {
    json_array(json, "block_sizes");
    for (int i = 0; i < options.size_count; i++) {
        json_integer(json, NULL, options.sizes[i]);
    }
    json_end(json);
    json_array(json, "results");
    for (int i = 0; i < run->done_count; i++) {
        const struct done *done = &run->done[i];
        const struct whole whole = whole_of(done);
        json_object(json, NULL);
        json_integer(json, "block_bytes", done->size);
        json_integer(json, "write_percent", done->write_percent);
        json_number(json, "reads", whole.requests[READ]);
        json_number(json, "writes", whole.requests[WRITE]);
        json_number(json, "bytes", whole.bytes);
        json_number(json, "elapsed_seconds", whole.elapsed);
        json_number(json, "mib_per_second", per_second(whole.bytes / MIB, whole.elapsed));
        json_number(json, "client_cpu_seconds", whole.client_cpu);
        json_number(json, "server_cpu_seconds", whole.server_cpu);
        for (int kind = 0; kind < KIND_COUNT; kind++) {
            const struct summary summary = latency_summary(&done->latencies[kind]);
            json_summary(json, KIND_NAMES[kind], &summary);
            json_histogram(json, kind == READ ? "read_latencies" : "write_latencies", &done->latencies[kind]);
        }
        json_array(json, "processes");
        for (int process = 0; process < job.count; process++) {
            json_process(json, process, &done->results[process]);
        }
        json_end(json);
        json_end(json);
    }
    json_end(json);
}
