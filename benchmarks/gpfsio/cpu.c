#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpfsio.h"

/* The servers that this process looks at. */
static struct {
    int64_t pid; /* 0: its node alone, or another process looks. */
    unsigned long long start; /* When it started: a pid may be given again. */
} watched[SERVERS_MAX];

static double ticks_to_seconds(unsigned long long ticks) {
    return (double)ticks / (double)sysconf(_SC_CLK_TCK);
}

/* Times of a process with all its threads; false: it is not there. */
static bool process_look(int64_t pid, struct cpu_seconds *cpu, unsigned long long *start) {
    char path[64];
    char text[1024];
    (void)snprintf(path, sizeof path, "/proc/%lld/stat", (long long)pid);
    FILE *file = fopen(path, "re");
    if (file == NULL) return false;
    const size_t length = fread(text, 1, sizeof text - 1, file);
    (void)fclose(file);
    text[length] = '\0';
    /* The name in brackets may hold anything; what follows its end does not. */
    const char *rest = strrchr(text, ')');
    unsigned long long user = 0;
    unsigned long long system = 0;
    char state = 0;
    if (rest == NULL || sscanf(rest + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu %*d %*d %*d %*d %*d %*d %llu",
                               &state, &user, &system, start) != 4) {
        return false;
    }
    /* What has ended and not been waited for is gone. */
    if (state == 'Z' || state == 'X') return false;
    *cpu = (struct cpu_seconds){.user = ticks_to_seconds(user), .system = ticks_to_seconds(system)};
    return true;
}

/* The pid that `what` is or holds; 0: it has `fail`ed. */
static int64_t pid_of(const char *what) {
    int64_t pid = 0;
    char text[32] = "";
    if (parse_number(what, 1, INT32_MAX, &pid)) return pid;
    FILE *file = fopen(what, "re");
    if (file == NULL) {
        fail("--server %s: %s", what, strerror(errno));
        return 0;
    }
    const bool is_read = fgets(text, sizeof text, file) != NULL;
    (void)fclose(file);
    text[strcspn(text, "\n")] = '\0';
    if (is_read && parse_number(text, 1, INT32_MAX, &pid)) return pid;
    fail("--server %s: the file does not hold a pid", what);
    return 0;
}

void cpu_prepare(const struct options *options) {
    for (int i = 0; i < options->server_count; i++) {
        const struct server *server = &options->servers[i];
        struct cpu_seconds cpu;
        if (server->process != job.rank || server->what[0] == '\0') continue;
        watched[i].pid = pid_of(server->what);
        if (watched[i].pid == 0) return;
        if (process_look(watched[i].pid, &cpu, &watched[i].start)) continue;
        fail("--server %s: there is no process %lld here", server->what, (long long)watched[i].pid);
        return;
    }
}

static bool node_look(struct node_cpu *node) {
    /* user nice system idle iowait irq softirq steal */
    unsigned long long ticks[8] = {0};
    FILE *file = fopen("/proc/stat", "re");
    if (file == NULL) return false;
    const int found = fscanf(file, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &ticks[0], &ticks[1], &ticks[2],
                             &ticks[3], &ticks[4], &ticks[5], &ticks[6], &ticks[7]);
    (void)fclose(file);
    if (found != 8) return false;
    unsigned long long total = 0;
    for (int i = 0; i < 8; i++) {
        total += ticks[i];
    }
    *node = (struct node_cpu){
        .user = ticks_to_seconds(ticks[0] + ticks[1]),
        .system = ticks_to_seconds(ticks[2] + ticks[5] + ticks[6]),
        .total = ticks_to_seconds(total),
    };
    return true;
}

void cpu_look(const struct options *options, struct cpu_state *state) {
    *state = (struct cpu_state){.time = now_seconds()};
    if (!node_look(&state->node)) {
        fail("cannot read the times of the processors in /proc/stat");
        return;
    }
    for (int i = 0; i < options->server_count; i++) {
        unsigned long long start = 0;
        if (watched[i].pid == 0) continue;
        if (process_look(watched[i].pid, &state->processes[i], &start) && start == watched[i].start) continue;
        fail("--server %s: process %lld has ended", options->servers[i].what, (long long)watched[i].pid);
        return;
    }
}

struct node_cpu node_cpu_between(const struct cpu_state *begin, const struct cpu_state *end) {
    return (struct node_cpu){
        .user = end->node.user - begin->node.user,
        .system = end->node.system - begin->node.system,
        .total = end->node.total - begin->node.total,
    };
}

struct server_cpu server_cpu_between(const struct cpu_state *begin, const struct cpu_state *end, int server) {
    return (struct server_cpu){
        .user = end->processes[server].user - begin->processes[server].user,
        .system = end->processes[server].system - begin->processes[server].system,
        .elapsed = end->time - begin->time,
        .node = node_cpu_between(begin, end),
    };
}
