#include "gpfsio.h"

static void write_node_cpu(struct json *json, const struct node_cpu *cpu) {
    json_number(json, "node_user_seconds", cpu->user);
    json_number(json, "node_system_seconds", cpu->system);
    json_number(json, "node_total_seconds", cpu->total);
}

static void write_nodes(struct json *json, const struct pass *pass) {
    json_array(json, "processes");
    for (int node = 0; node < pass->cell.nodes; node++) {
        const struct node_result *of = &pass->nodes[node];
        json_object(json, NULL);
        json_integer(json, "process", node);
        json_number(json, "user_seconds", of->process.user);
        json_number(json, "system_seconds", of->process.system);
        write_node_cpu(json, &of->node);
        json_number(json, "clock_error_seconds", of->clock_error);
        json_array(json, "threads");
        for (int thread = 0; thread < pass->cell.threads; thread++) {
            const struct span *span = &pass->spans[node * pass->cell.threads + thread];
            JSON_ROW(json, "thread", thread, {"start_seconds", span->begin}, {"end_seconds", span->end});
        }
        json_end(json);
        json_end(json);
    }
    json_end(json);
}

static void write_servers(struct json *json, const struct bench *bench, const struct pass *pass) {
    json_array(json, "servers");
    for (int i = 0; i < bench->options->server_count; i++) {
        const struct server_cpu *of = &pass->servers[i];
        json_object(json, NULL);
        json_text(json, "what", bench->options->servers[i].what);
        json_integer(json, "process", bench->options->servers[i].process);
        json_number(json, "user_seconds", of->user);
        json_number(json, "system_seconds", of->system);
        json_number(json, "elapsed_seconds", of->elapsed);
        write_node_cpu(json, &of->node);
        json_end(json);
    }
    json_end(json);
}

/* One object for each cell, as the tables have it. */
static void write_means(struct json *json, const struct bench *bench) {
    const struct options *options = bench->options;
    json_array(json, "means");
    for (int operation = 0; operation < OPERATION_COUNT; operation++) {
        if (!options->operations[operation]) continue;
        for (int i = 0; i < options->nodes.count * options->threads.count; i++) {
            const struct cell cell = {(int)options->nodes.values[i / options->threads.count],
                                      (int)options->threads.values[i % options->threads.count]};
            json_object(json, NULL);
            json_text(json, "operation", operation_name((enum operation)operation));
            json_integer(json, "nodes", cell.nodes);
            json_integer(json, "threads", cell.threads);
            const struct mean mean = mean_of(bench, (enum operation)operation, cell);
            json_number(json, "rate_mb_s", mean.rate);
            json_number(json, "node_user_percent", mean.nodes.user);
            json_number(json, "node_system_percent", mean.nodes.system);
            json_array(json, "servers");
            for (int server = 0; server < options->server_count; server++) {
                json_object(json, NULL);
                json_number(json, "node_user_percent", mean.servers[server].user);
                json_number(json, "node_system_percent", mean.servers[server].system);
                json_end(json);
            }
            json_end(json);
            json_end(json);
        }
    }
    json_end(json);
}

void json_write(struct json *json, const struct bench *bench) {
    write_means(json, bench);
    json_array(json, "results");
    for (int i = 0; i < bench->pass_count; i++) {
        const struct pass *pass = &bench->passes[i];
        json_object(json, NULL);
        json_text(json, "operation", operation_name(pass->operation));
        json_integer(json, "nodes", pass->cell.nodes);
        json_integer(json, "threads", pass->cell.threads);
        json_integer(json, "run", pass->run);
        json_flag(json, "counts", pass->counts);
        json_number(json, "bytes", pass->bytes);
        json_number(json, "seconds", pass->seconds);
        json_number(json, "rate_mb_s", rate_of(pass->bytes, pass->seconds));
        json_number(json, "clock_error_seconds", pass->clock_error);
        write_nodes(json, pass);
        write_servers(json, bench, pass);
        json_end(json);
    }
    json_end(json);
}
