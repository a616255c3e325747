#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "mdmark.h"

/*
 * A walk goes level for level: each process reads every N-th directory of a level, and hands what
 * directories it found there to all. So it finds what is there, not what should be, and no directory twice.
 */

/* Entries between two looks for failures of other processes. */
enum { LOOK_ENTRIES = 64 };
/* Bytes of the paths of one level, all processes together. */
#define PATHS_MAX ((size_t)1 << 30)

/* Texts with their ends, one after another. */
struct texts {
    char *bytes;
    size_t size;
    size_t room;
};

struct walk {
    struct run *run;
    enum test test;
    struct result *own;
    struct tree_counts *counts; /* NULL: nobody wants them. */
    int root;
    dev_t device;               /* Of the root: other file systems are not entered. */
    double skipped;
    struct texts found;         /* Directories of the next level, below the root. */
    struct texts names;         /* Entries of the directory that is being worked on. */
    struct texts *done;         /* DELETE: our directories of each level. */
    int done_levels;
};

static bool texts_add(struct texts *texts, const char *text) {
    const size_t length = strlen(text) + 1;
    if (texts->size + length > texts->room) {
        const size_t room = 2 * (texts->size + length) + 4096;
        char *bytes = texts->size > PATHS_MAX ? NULL : realloc(texts->bytes, room);
        if (bytes == NULL) {
            fail("no memory for the names of a level (%zu bytes)", room);
            return false;
        }
        texts->bytes = bytes;
        texts->room = room;
    }
    memcpy(texts->bytes + texts->size, text, length);
    texts->size += length;
    return true;
}

static void texts_free(struct texts *texts) {
    free(texts->bytes);
    *texts = (struct texts){0};
}

/* All texts, and how often the loop has gone round. */
#define EACH_TEXT(text, texts)                                                           \
    for (const char *text = (texts)->bytes; text < (texts)->bytes + (texts)->size; \
         text += strlen(text) + 1)

static bool walk_failed(const struct walk *walk, const char *what, const char *path, const char *name) {
    const int error = errno;
    fail("cannot %s %s/%s%s%s: %s", what, walk->run->root, path, *path != '\0' && *name != '\0' ? "/" : "", name,
         strerror(error));
    return false;
}

/* A live tree is measured: what goes away meanwhile, or is not ours to see, is left out. */
static bool may_skip(const struct walk *walk) {
    return walk->test == MEASURE && (errno == ENOENT || errno == EACCES || errno == EPERM);
}

/* All names of a directory, before anything is done to them. */
static bool names_read(struct walk *walk, DIR *directory, const char *path) {
    walk->names.size = 0;
    for (;;) {
        errno = 0;
        const struct dirent *entry = readdir(directory);
        if (entry == NULL) return errno == 0 || walk_failed(walk, "read", path, "");
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        if (!texts_add(&walk->names, entry->d_name)) return false;
    }
}

static bool found_add(struct walk *walk, const char *path, const char *name) {
    char whole[PATH_MAX];
    if (snprintf(whole, sizeof whole, "%s%s%s", path, *path != '\0' ? "/" : "", name) >= PATH_MAX) {
        errno = ENAMETOOLONG;
        return walk_failed(walk, "enter", path, name);
    }
    return texts_add(&walk->found, whole);
}

/* What a test does to one entry. False: it has `fail`ed. */
static bool entry_work(struct walk *walk, int directory, const char *path, const char *name, int64_t counts[2]) {
    struct stat status;
    if (fstatat(directory, name, &status, AT_SYMLINK_NOFOLLOW) != 0) {
        return may_skip(walk) || walk_failed(walk, "stat", path, name);
    }
    const bool is_directory = S_ISDIR(status.st_mode);
    walk->own->operations++;
    counts[is_directory]++;
    if (is_directory) {
        walk->own->directories++;
        if (status.st_dev == walk->device && !found_add(walk, path, name)) return false;
    } else {
        walk->own->files++;
        walk->own->bytes += (double)status.st_size;
        if (walk->counts != NULL) walk->counts->sizes.counts[bin_of(status.st_size)]++;
    }
    if (walk->test == UPDATE) {
        if (utimensat(directory, name, NULL, AT_SYMLINK_NOFOLLOW) != 0) {
            return walk_failed(walk, "set the times of", path, name);
        }
        walk->own->operations++;
    } else if (walk->test == DELETE && !is_directory) {
        if (unlinkat(directory, name, 0) != 0) return walk_failed(walk, "remove", path, name);
        walk->own->operations++;
    }
    return true;
}

static bool directory_work(struct walk *walk, const char *path, int level) {
    const int handle = openat(walk->root, *path == '\0' ? "." : path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    DIR *directory = handle < 0 ? NULL : fdopendir(handle);
    if (directory == NULL) {
        const bool is_skipped = may_skip(walk);
        if (!is_skipped) (void)walk_failed(walk, "open", path, "");
        if (handle >= 0) (void)close(handle);
        walk->skipped++;
        return is_skipped;
    }
    int64_t counts[2] = {0, 0};
    int64_t index = 0;
    bool is_good = names_read(walk, directory, path);
    EACH_TEXT(name, &walk->names) {
        if (!is_good || job_should_stop()) break;
        if (index++ % LOOK_ENTRIES == 0) job_exchange_stops();
        is_good = entry_work(walk, dirfd(directory), path, name, counts);
    }
    (void)closedir(directory);
    if (walk->counts != NULL) {
        struct level_counts *of = &walk->counts->levels[level < LEVELS_MAX ? level : LEVELS_MAX - 1];
        of->files.counts[bin_of(counts[0])]++;
        of->directories.counts[bin_of(counts[1])]++;
        of->entries.counts[bin_of(counts[0] + counts[1])]++;
    }
    return is_good;
}

/* Remembers a directory that is to be removed after all that is below it. */
static bool done_add(struct walk *walk, const char *path, int level) {
    if (level >= walk->done_levels) {
        struct texts *done = realloc(walk->done, (size_t)(level + 1) * sizeof *done);
        if (done == NULL) {
            fail("no memory for level %d", level);
            return false;
        }
        while (walk->done_levels <= level) {
            done[walk->done_levels++] = (struct texts){0};
        }
        walk->done = done;
    }
    return texts_add(&walk->done[level], path);
}

/* Our share of a level. */
static void level_work(struct walk *walk, const struct texts *level_paths, int level) {
    const double begin = now_seconds();
    int64_t index = 0;
    EACH_TEXT(path, level_paths) {
        if (index++ % job.count != job.rank) continue;
        job_exchange_stops();
        if (job_should_stop()) break;
        if (walk->test == DELETE && *path != '\0' && !done_add(walk, path, level)) break;
        if (!directory_work(walk, path, level)) break;
    }
    walk->own->seconds += now_seconds() - begin;
}

/* Down to where no directories are. Returns the levels, or negative: somebody has failed and has said so. */
static int levels_work(struct walk *walk) {
    struct texts paths = {0};
    int level = 0;
    (void)texts_add(&paths, "");
    if (!job_agree()) return -1;
    for (; paths.size > 0; level++) {
        walk->found.size = 0;
        level_work(walk, &paths, level);
        texts_free(&paths);
        if (!job_share(walk->found.bytes, walk->found.size, PATHS_MAX, &paths.bytes, &paths.size)) return -1;
    }
    texts_free(&paths);
    return level;
}

/* Removes the directories, the deepest first; those of one level are empty when all deeper ones are gone. */
static bool directories_remove(struct walk *walk, int levels) {
    for (int level = levels - 1; level > 0; level--) {
        const double begin = now_seconds();
        if (level < walk->done_levels) {
            EACH_TEXT(path, &walk->done[level]) {
                job_exchange_stops();
                if (job_should_stop()) break;
                if (unlinkat(walk->root, path, AT_REMOVEDIR) != 0) {
                    (void)walk_failed(walk, "remove", path, "");
                    break;
                }
                walk->own->operations++;
            }
        }
        walk->own->seconds += now_seconds() - begin;
        if (!job_agree()) return false;
    }
    if (job.rank == 0 && rmdir(walk->run->root) != 0) {
        fail("cannot remove %s: %s", walk->run->root, strerror(errno));
    }
    return job_agree();
}

/* What the walk found must be what the plan says; all processes together. */
static bool compare(const struct walk *walk) {
    const struct plan *plan = &walk->run->plan;
    double found[3] = {walk->own->files, walk->own->directories, walk->own->bytes};
    job_sum(found, 3);
    const double bytes = (double)plan->bytes;
    const double directories = (double)(plan->count - 1);
    const bool is_same =
        found[0] == (double)plan->files && found[1] == directories && found[2] == bytes;
    if (job.rank == 0 && walk->test != MEASURE && !is_same) {
        fail("%s found %.0f files, %.0f directories and %.0f bytes in %s; the tree of these options has %lld, %.0f "
             "and %.0f",
             test_name(walk->test), found[0], found[1], found[2], walk->run->root, (long long)plan->files, directories,
             bytes);
    }
    return job_agree();
}

static bool counts_collect(struct walk *walk) {
    double *all = (double *)walk->counts;
    job_sum(all, (int)(sizeof *walk->counts / sizeof(double)));
    if (job.rank != 0) {
        free(walk->counts);
    } else {
        free(walk->run->counts);
        walk->run->counts = walk->counts;
    }
    walk->counts = NULL;
    job_sum(&walk->skipped, 1);
    walk->run->skipped = walk->skipped;
    return true;
}

static bool walk_begin(struct walk *walk) {
    struct stat status = {0};
    walk->root = open(walk->run->root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (walk->root < 0 || fstat(walk->root, &status) != 0) {
        fail("cannot open %s: %s", walk->run->root, strerror(errno));
    }
    walk->device = status.st_dev;
    if (walk->test == STATISTICS || walk->test == MEASURE) {
        walk->counts = calloc(1, sizeof *walk->counts);
        if (walk->counts == NULL) fail("no memory for the statistics");
    }
    return job_agree();
}

static void walk_end(struct walk *walk) {
    if (walk->root >= 0) (void)close(walk->root);
    texts_free(&walk->found);
    texts_free(&walk->names);
    for (int level = 0; level < walk->done_levels; level++) {
        texts_free(&walk->done[level]);
    }
    free(walk->done);
    free(walk->counts);
}

bool walk_run(struct run *run, enum test test, struct result *own) {
    struct walk walk = {.run = run, .test = test, .own = own, .root = -1};
    *own = (struct result){0};
    bool is_good = walk_begin(&walk);
    if (is_good) {
        const double system_begin = system_seconds();
        job_barrier();
        const double begin = now_seconds();
        const int levels = levels_work(&walk);
        is_good = levels >= 0 && (test != DELETE || directories_remove(&walk, levels));
        own->elapsed = now_seconds() - begin;
        own->system_seconds = system_seconds() - system_begin;
    }
    if (is_good && walk.counts != NULL) is_good = counts_collect(&walk);
    is_good = is_good && compare(&walk);
    if (test == DELETE && is_good) run->made = false;
    walk_end(&walk);
    return is_good;
}
