#define _GNU_SOURCE
#include "result.h"

#include <errno.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "cleaner.h"
#include "job.h"
#include "program.h"

/* What a process says of its node. */
struct node_facts {
    char host[256];
    int64_t processors;
    int64_t memory_bytes;
};

static struct node_facts node_look(void) {
    struct node_facts facts = {.processors = sysconf(_SC_NPROCESSORS_ONLN)};
    if (gethostname(facts.host, sizeof facts.host - 1) != 0) facts.host[0] = '\0';
    facts.memory_bytes = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    return facts;
}

static void write_machine(struct json *json, const struct node_facts *nodes) {
    char mpi[MPI_MAX_LIBRARY_VERSION_STRING];
    char kernel[sizeof(struct utsname)];
    struct utsname name;
    int length = 0;
    MPI_Get_library_version(mpi, &length);
    /* MPICH tells all its compiler's options: its first line is enough. */
    mpi[strcspn(mpi, "\n")] = '\0';
    for (char *at = mpi; *at != '\0'; at++) {
        if (*at == '\t') *at = ' ';
    }
    if (uname(&name) != 0) memset(&name, 0, sizeof name);
    (void)snprintf(kernel, sizeof kernel, "%s %s %s", name.sysname, name.release, name.machine);
    json_object(json, "machine");
    json_text(json, "kernel", kernel);
    json_text(json, "mpi", mpi);
    json_array(json, "processes");
    for (int process = 0; process < job.count; process++) {
        json_object(json, NULL);
        json_integer(json, "process", process);
        json_text(json, "host", nodes[process].host);
        json_integer(json, "processors", nodes[process].processors);
        json_integer(json, "memory_bytes", nodes[process].memory_bytes);
        json_end(json);
    }
    json_end(json);
    json_end(json);
}

static void write_words(struct json *json, const char *name, const char *words, const bool *given) {
    size_t length = 0;
    char text[64];
    json_array(json, name);
    for (int i = 0;; i++) {
        const char *word = options_word(words, i, &length);
        if (word == NULL) break;
        if (!given[i]) continue;
        (void)snprintf(text, sizeof text, "%.*s", (int)length, word);
        json_text(json, NULL, text);
    }
    json_end(json);
}

static void write_option(struct json *json, const struct option_row *row, const void *options) {
    char letter[2] = {(char)row->letter, '\0'};
    const char *name = row->name != NULL ? row->name : letter;
    const void *field = (const char *)options + row->at;
    const struct numbers *numbers = field;
    switch (row->kind) {
    case OPTION_FLAG: json_flag(json, name, *(const bool *)field); break;
    case OPTION_TEXT: json_text(json, name, *(const char *const *)field); break;
    case OPTION_NUMBER:
    case OPTION_SIZE: json_integer(json, name, *(const int64_t *)field); break;
    case OPTION_NUMBERS:
        json_array(json, name);
        for (int i = 0; i < numbers->count; i++) {
            json_integer(json, NULL, numbers->values[i]);
        }
        json_end(json);
        break;
    case OPTION_WORDS: write_words(json, name, row->what, field); break;
    case OPTION_OWN:
    case OPTION_OWN_FLAG: break;
    }
}

static void write_head(struct result_file *result, const struct option_row *rows, const void *options, int argc,
                       char **argv, const struct node_facts *nodes) {
    struct json *json = &result->json;
    char stamp[64] = "";
    const time_t now = time(NULL);
    struct tm parts;
    if (gmtime_r(&now, &parts) != NULL) (void)strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%SZ", &parts);
    json_object(json, NULL);
    json_text(json, "program", job.program);
    json_text(json, "version", PROGRAM_VERSION);
    json_text(json, "started", stamp);
    json_array(json, "command");
    for (int i = 0; i < argc; i++) {
        json_text(json, NULL, argv[i]);
    }
    json_end(json);
    write_machine(json, nodes);
    json_object(json, "options");
    for (const struct option_row *row = rows; row->letter != 0; row++) {
        write_option(json, row, options);
    }
    json_end(json);
}

/* Process 0: the file, as long as it is only a draft. */
static void draft_open(struct result_file *result, const char *path) {
    struct stat status;
    if (snprintf(result->path, PATH_MAX, "%s", path) >= PATH_MAX ||
        snprintf(result->draft, PATH_MAX, "%s.part", path) >= PATH_MAX) {
        fail("--json: the name is too long");
        return;
    }
    if (stat(path, &status) == 0 && !S_ISREG(status.st_mode)) {
        fail("--json %s: there is something that is no file", path);
        return;
    }
    result->json.file = fopen(result->draft, "we");
    if (result->json.file == NULL) {
        fail("cannot make the result %s: %s", result->draft, strerror(errno));
        return;
    }
    cleaner_expect(result->draft, LEFT_FILE);
}

bool result_begin(struct result_file *result, const char *path, const struct option_row *rows, const void *options,
                  int argc, char **argv) {
    *result = (struct result_file){.json = json_begin(NULL)};
    if (path == NULL) return true;
    struct node_facts *nodes = NULL;
    const struct node_facts own = node_look();
    if (job.rank == 0) {
        nodes = calloc((size_t)job.count, sizeof *nodes);
        if (nodes == NULL) fail("no memory for %d processes", job.count);
        draft_open(result, path);
    }
    const bool is_good = job_agree();
    if (is_good) {
        job_gather_bytes(&own, sizeof own, nodes);
        if (job.rank == 0) write_head(result, rows, options, argc, argv, nodes);
    }
    free(nodes);
    return is_good;
}

bool result_is_wanted(const struct result_file *result) {
    return result->json.file != NULL;
}

void result_close(struct result_file *result) {
    FILE *file = result->json.file;
    if (file == NULL) return;
    json_end(&result->json);
    const bool is_bad = fflush(file) != 0 || ferror(file) != 0;
    const int error = errno;
    result->json.file = NULL;
    if (fclose(file) != 0 || is_bad) {
        fail("cannot write the result %s: %s", result->draft, strerror(error));
        (void)unlink(result->draft);
    } else if (rename(result->draft, result->path) != 0) {
        fail("cannot move the result to %s: %s", result->path, strerror(errno));
        (void)unlink(result->draft);
    }
}

void result_drop(struct result_file *result) {
    if (result->json.file == NULL) return;
    (void)fclose(result->json.file);
    result->json.file = NULL;
    (void)unlink(result->draft);
}
