#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../common/cleaner.h"
#include "mdmark.h"

/* Bytes of a write, and entries between two looks for failures of other processes. */
enum { PIECE_BYTES = 65536, LOOK_ENTRIES = 64 };

static bool make_failed(const struct run *run, const char *what, const char *path, const char *name) {
    fail("cannot %s %s/%s%s%s: %s", what, run->root, path, *path != '\0' && *name != '\0' ? "/" : "", name,
         strerror(errno));
    return false;
}

static bool file_fill(int file, struct stream contents, int64_t size) {
    static uint64_t piece[PIECE_BYTES / sizeof(uint64_t)];
    if (options.hollow) return ftruncate(file, size) == 0;
    for (int64_t done = 0; done < size;) {
        const int64_t rest = size - done;
        const size_t bytes = rest < PIECE_BYTES ? (size_t)rest : PIECE_BYTES;
        for (size_t i = 0; i < (bytes + sizeof *piece - 1) / sizeof *piece; i++) {
            piece[i] = stream_next(&contents);
        }
        for (size_t at = 0; at < bytes;) {
            const ssize_t moved = write(file, (const char *)piece + at, bytes - at);
            if (moved < 0 && errno == EINTR) continue;
            if (moved == 0) errno = ENOSPC;
            if (moved <= 0) return false;
            at += (size_t)moved;
        }
        done += (int64_t)bytes;
    }
    return true;
}

static bool file_make(const struct run *run, const struct node *node, int directory, const char *path,
                      int32_t index) {
    char name[NAME_BYTES];
    entry_name(node, index, name);
    const int file = openat(directory, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file < 0) return make_failed(run, "create", path, name);
    if (!file_fill(file, file_contents(node, index), file_size(&run->plan, node, index))) {
        (void)make_failed(run, "write", path, name);
        (void)close(file);
        return false;
    }
    return close(file) == 0 || make_failed(run, "close", path, name);
}

/* A directory and its files. */
static void directory_make(const struct run *run, int root, int64_t index, struct result *own) {
    const struct node *node = &run->plan.nodes[index];
    char path[PATH_MAX];
    if (!node_path(&run->plan, index, path)) return;
    if (node->parent >= 0) {
        if (mkdirat(root, path, 0777) != 0) {
            (void)make_failed(run, "make the directory", path, "");
            return;
        }
        own->directories++;
        own->operations++;
    }
    if (node->files == 0) return;
    const int directory = openat(root, path[0] == '\0' ? "." : path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (directory < 0) {
        (void)make_failed(run, "open", path, "");
        return;
    }
    for (int32_t i = 0; i < node->files && !job_should_stop(); i++) {
        if (i % LOOK_ENTRIES == 0) job_exchange_stops();
        if (!file_make(run, node, directory, path, i)) break;
        own->files++;
        own->operations++;
        own->bytes += (double)file_size(&run->plan, node, i);
    }
    (void)close(directory);
}

/* The root, by process 0; the others see it afterwards. */
static bool root_make(struct run *run) {
    if (job.rank == 0) {
        if (mkdir(run->root, 0777) != 0) {
            fail("cannot make the directory %s: %s", run->root, strerror(errno));
        } else {
            run->made = true;
            if (!options.keep) cleaner_expect(run->root, LEFT_TREE);
        }
    }
    return job_agree();
}

/* Directories of a level exist when those of the next one are made. */
bool make_run(struct run *run, struct result *own) {
    *own = (struct result){0};
    if (!root_make(run)) return false;
    const int root = open(run->root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (root < 0) fail("cannot open %s: %s", run->root, strerror(errno));
    if (!job_agree()) {
        if (root >= 0) (void)close(root);
        return false;
    }
    const struct plan *plan = &run->plan;
    const double system_begin = system_seconds();
    job_barrier();
    const double begin = now_seconds();
    for (int level = 0; level < plan->levels; level++) {
        const double level_begin = now_seconds();
        for (int64_t i = plan->level_begin[level] + job.rank; i < plan->level_begin[level + 1]; i += job.count) {
            job_exchange_stops();
            if (job_should_stop()) break;
            directory_make(run, root, plan->by_level[i], own);
        }
        own->seconds += now_seconds() - level_begin;
        job_barrier();
    }
    own->elapsed = now_seconds() - begin;
    own->system_seconds = system_seconds() - system_begin;
    (void)close(root);
    return job_agree();
}
