#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../common/cleaner.h"
#include "metabench.h"

extern char **environ;

/*
 * Runs tar with both outputs going to memory. Returns what it printed, to be read from its begin, or `fail`s
 * and returns NULL.
 */
static FILE *tar_run(const char *action, const char *archive) {
    char *words[] = {"tar", (char *)action, (char *)archive, NULL};
    const int output = memfd_create("tar", MFD_CLOEXEC);
    const int errors = memfd_create("tar errors", MFD_CLOEXEC);
    posix_spawn_file_actions_t actions;
    pid_t child = 0;
    int status = 0;
    if (output < 0 || errors < 0) {
        fail("no memory for what tar prints: %s", strerror(errno));
        return NULL;
    }
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, errors, STDERR_FILENO);
    const int error = posix_spawnp(&child, "tar", &actions, NULL, words, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (error != 0) {
        fail("cannot start tar: %s", strerror(error));
    } else {
        while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
        }
        if (status != 0) {
            char text[256];
            const ssize_t size = pread(errors, text, sizeof text - 1, 0);
            text[size > 0 ? size : 0] = '\0';
            text[strcspn(text, "\n")] = '\0';
            fail("tar %s %s fails: %s", action, archive, text[0] != '\0' ? text : "it does not say why");
        }
    }
    (void)close(errors);
    FILE *printed = lseek(output, 0, SEEK_SET) == 0 ? fdopen(output, "r") : NULL;
    if (printed == NULL) {
        fail("cannot read what tar printed: %s", strerror(errno));
        (void)close(output);
    }
    return printed;
}

/* Counts what is in the archive; directories end in a slash. */
static void count(struct bench *bench) {
    FILE *names = tar_run("-tf", bench->archive);
    char *line = NULL;
    size_t room = 0;
    ssize_t size = 0;
    if (names == NULL) return;
    while ((size = getline(&line, &room, names)) > 0) {
        const bool is_directory = size > 1 && line[size - 2] == '/';
        *(is_directory ? &bench->archive_directories : &bench->archive_files) += 1;
    }
    free(line);
    (void)fclose(names);
    if (!job_should_stop() && bench->archive_files == 0) fail("%s has no files", bench->archive);
}

static void make_own(struct bench *bench) {
    const char *local = bench->options->local;
    if (snprintf(bench->archive, PATH_MAX, "%s/metabench_XXXXXX", local) >= PATH_MAX) {
        fail("the name of the archive is too long");
        return;
    }
    const int handle = mkstemp(bench->archive);
    if (handle < 0) {
        fail("cannot make an archive in %s: %s", local, strerror(errno));
        return;
    }
    bench->own_archive = true;
    cleaner_expect(bench->archive, LEFT_FILE);
    archive_write(handle, bench->archive);
}

bool archive_prepare(struct bench *bench) {
    const char *given = bench->options->archive;
    if (given != NULL) {
        /* Seen from where we are before we enter directories. */
        if (realpath(given, bench->archive) == NULL || access(bench->archive, R_OK) != 0) {
            fail("archive %s: %s", given, strerror(errno));
        }
    } else {
        if (job_is_first_of_node()) make_own(bench);
        job_share_in_node(bench->archive, sizeof bench->archive);
    }
    if (!job_agree()) return false;
    count(bench);
    job_compare((unsigned long long)bench->archive_files, "the number of files in the archive");
    return job_agree();
}

void archive_remove(struct bench *bench) {
    if (bench->own_archive && unlink(bench->archive) != 0) {
        fail("cannot remove %s: %s", bench->archive, strerror(errno));
    }
    bench->own_archive = false;
}

void archive_unpack(const struct bench *bench) {
    FILE *printed = tar_run("-xf", bench->archive);
    if (printed != NULL) (void)fclose(printed);
}
