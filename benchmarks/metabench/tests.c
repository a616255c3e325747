#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utime.h>

#include "../common/cleaner.h"
#include "../common/tree.h"
#include "metabench.h"

/* Files between two looks for failures of other processes. */
enum { LOOK_FILES = 64 };

const char *test_name(enum test test) {
    static const char *const names[TEST_COUNT] = {"Create-A", "Create-B", "Create-C", "Stat-A",   "Stat-B",
                                                  "Utime-A",  "Utime-B",  "Append-A", "Append-B", "Untar"};
    return names[test];
}

static bool is_separate(enum test test) {
    return test == CREATE_B || test == STAT_A || test == UTIME_A || test == APPEND_A || test == UNTAR;
}

/* Whether each process walks through one directory that process 0 has filled. */
static bool is_walk(enum test test) {
    return test == STAT_B || test == UTIME_B || test == APPEND_B;
}

int test_directories(const struct bench *bench, enum test test) {
    return is_separate(test) ? bench->participants : 1;
}

void test_directory_name(enum test test, int place, char name[64]) {
    static const char *const names[TEST_COUNT] = {"create_a", "create_b", "create_c", "stat_a",   "stat_b",
                                                  "utime_a",  "utime_b",  "append_a", "append_b", "untar"};
    if (is_separate(test)) {
        (void)snprintf(name, 64, "%s.%d", names[test], place);
    } else {
        (void)snprintf(name, 64, "%s", names[test]);
    }
}

/*
 * The names of a place's files, one after another: f<place>.0, f<place>.1, ... Counting in the text itself takes
 * nothing of the time of what is measured; printing each would be a tenth of a stat in memory.
 */
struct names {
    char text[64];
    int first; /* Of the number's digits. */
    int last;
};

static struct names names_begin(int place) {
    struct names names = {.first = 0};
    names.first = snprintf(names.text, sizeof names.text, "f%d.", place);
    names.last = names.first;
    names.text[names.first] = '0';
    return names;
}

static void names_next(struct names *names) {
    int at = names->last;
    while (at >= names->first && names->text[at] == '9') {
        names->text[at--] = '0';
    }
    if (at >= names->first) {
        names->text[at]++;
    } else {
        /* One digit more: the text was full of zeros behind its first. */
        names->text[names->first] = '1';
        names->text[++names->last] = '0';
    }
}

static bool file_failed(const char *what, const char *name) {
    char directory[PATH_MAX];
    const int error = errno;
    if (getcwd(directory, sizeof directory) == NULL) directory[0] = '\0';
    fail("cannot %s %s/%s: %s", what, directory, name, strerror(error));
    return false;
}

static bool file_create(const char *name) {
    const int file = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file < 0 || close(file) != 0) return file_failed("create", name);
    return true;
}

static bool file_append(const struct bench *bench, const char *name) {
    const int file = open(name, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (file < 0) return file_failed("open", name);
    const int64_t size = bench->options->append_bytes;
    int64_t done = 0;
    while (done < size) {
        const ssize_t moved = write(file, bench->bytes + done, (size_t)(size - done));
        if (moved < 0 && errno == EINTR) continue;
        if (moved <= 0) {
            (void)file_failed("append to", name);
            (void)close(file);
            return false;
        }
        done += moved;
    }
    if (close(file) != 0) return file_failed("close", name);
    return true;
}

/* What the test measures, on one file of the current directory. */
static bool file_work(const struct bench *bench, enum test test, const char *name) {
    struct stat status;
    switch (test) {
    case CREATE_A:
    case CREATE_B:
    case CREATE_C: return file_create(name);
    case STAT_A:
    case STAT_B: return stat(name, &status) == 0 || file_failed("stat", name);
    case UTIME_A:
    case UTIME_B: return utime(name, NULL) == 0 || file_failed("set the times of", name);
    case APPEND_A:
    case APPEND_B: return file_append(bench, name);
    case UNTAR:
    case TEST_COUNT: break;
    }
    return false;
}

/* Whether to go on with file `index`. */
static bool go_on(int64_t index) {
    if (index % LOOK_FILES == 0) job_exchange_stops();
    return !job_should_stop();
}

/* Fills the current directory with files of `place`. */
static void fill(int place, int64_t count) {
    struct names names = names_begin(place);
    for (int64_t i = 0; i < count && go_on(i); i++, names_next(&names)) {
        if (!file_create(names.text)) return;
    }
}

static bool enter(const struct bench *bench, const char *name) {
    if (fchdir(bench->work_handle) == 0 && chdir(name) == 0) return true;
    fail("cannot enter %s/%s: %s", bench->directory, name, strerror(errno));
    return false;
}

static void leave(const struct bench *bench) {
    if (fchdir(bench->start_handle) != 0) fail("cannot go back to the first directory: %s", strerror(errno));
}

/* Process 0: the directories of a test, and their files if it needs some. */
static void prepare(struct bench *bench, enum test test) {
    const int count = test_directories(bench, test);
    const bool is_filled = test != CREATE_A && test != CREATE_B && test != CREATE_C && test != UNTAR;
    for (int place = 0; place < count && !job_should_stop(); place++) {
        char name[64];
        char path[PATH_MAX];
        test_directory_name(test, place, name);
        if (snprintf(path, sizeof path, "%s/%s", bench->directory, name) >= (int)sizeof path) {
            fail("the name of the working directory is too long");
            return;
        }
        if (mkdir(path, 0777) != 0) {
            fail("cannot make the directory %s: %s", path, strerror(errno));
            return;
        }
        bench->made[test]++;
        cleaner_expect(path, LEFT_TREE);
        if (!is_filled || !enter(bench, name)) continue;
        fill(place, is_walk(test) ? bench->options->files : bench->each);
        leave(bench);
    }
}

static const struct dirent *next_entry(DIR *directory) {
    for (;;) {
        errno = 0;
        const struct dirent *entry = readdir(directory);
        if (entry == NULL) {
            fail("the directory ends too early: %s", errno == 0 ? "entries are missing" : strerror(errno));
            return NULL;
        }
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) return entry;
    }
}

/* Opens the current directory and walks to this process's first entry. */
static DIR *walk(const struct bench *bench) {
    DIR *directory = opendir(".");
    if (directory == NULL) {
        (void)file_failed("open", ".");
        return NULL;
    }
    const int64_t first = bench->place * bench->each;
    for (int64_t i = 0; i < first; i++) {
        if (next_entry(directory) == NULL) break;
    }
    return directory;
}

/* Create-A, with the time of each batch. */
static int64_t work_batches(struct bench *bench) {
    const int64_t files = bench->options->files;
    struct names names = names_begin(0);
    double begin = now_seconds();
    int64_t i = 0;
    for (; i < files && go_on(i); i++, names_next(&names)) {
        if (!file_create(names.text)) break;
        if ((i + 1) % bench->options->batch != 0 && i + 1 != files) continue;
        const double end = now_seconds();
        bench->batches[i / bench->options->batch] = end - begin;
        begin = end;
    }
    return i;
}

/* Returns how many files it worked on. */
static int64_t work(struct bench *bench, enum test test, DIR *directory) {
    if (test == CREATE_A) return work_batches(bench);
    if (test == UNTAR) {
        archive_unpack(bench);
        return bench->archive_files;
    }
    struct names names = names_begin(bench->place);
    int64_t i = 0;
    for (; i < bench->each && go_on(i); i++) {
        if (directory != NULL) {
            const struct dirent *entry = next_entry(directory);
            if (entry == NULL || !file_work(bench, test, entry->d_name)) break;
        } else {
            if (!file_work(bench, test, names.text)) break;
            names_next(&names);
        }
    }
    return i;
}

/* Process 0: removes the directories of a test. */
static void clean_up(struct bench *bench, enum test test, int64_t *removed) {
    for (int place = 0; place < bench->made[test]; place++) {
        char name[64];
        char path[PATH_MAX + 64];
        test_directory_name(test, place, name);
        (void)snprintf(path, sizeof path, "%s/%s", bench->directory, name);
        if (!tree_remove(path, removed)) fail("cannot remove %s: %s", path, strerror(errno));
    }
    bench->made[test] = 0;
}

void test_remove_all(struct bench *bench) {
    for (int test = 0; test < TEST_COUNT; test++) {
        clean_up(bench, (enum test)test, NULL);
    }
}

/* Between the barriers. */
static struct result measure(struct bench *bench, enum test test, DIR *directory, bool takes_part) {
    struct result own = {0};
    job_barrier();
    const double begin = now_seconds();
    if (takes_part) {
        own.files = (double)work(bench, test, directory);
        own.seconds = now_seconds() - begin;
    }
    job_exchange_stops();
    job_barrier();
    own.elapsed = now_seconds() - begin;
    return own;
}

static bool collect(struct bench *bench, struct done *done, const struct result *own) {
    _Static_assert(sizeof *own == 3 * sizeof(double), "a result is three doubles");
    if (job.rank == 0) {
        done->results = calloc((size_t)job.count, sizeof *done->results);
        if (done->results == NULL) fail("no memory for the results");
    }
    if (!job_agree()) return false;
    job_gather((const double *)own, 3, (double *)done->results);
    if (done->test == CREATE_A) job_hand_over(bench->batches, bench->batch_count, job.count - 1);
    bench->done_count++;
    return true;
}

bool test_run(struct bench *bench, enum test test) {
    const bool takes_part = test == CREATE_A ? job.rank == job.count - 1 : bench->place >= 0;
    struct done *done = &bench->done[bench->done_count];
    DIR *directory = NULL;
    char name[64];
    *done = (struct done){.test = test};
    if (job.rank == 0) prepare(bench, test);
    if (!job_agree()) return false;
    test_directory_name(test, bench->place, name);
    if (takes_part && enter(bench, name) && is_walk(test)) directory = walk(bench);
    bool is_good = job_agree();
    if (is_good) {
        const struct result own = measure(bench, test, directory, takes_part);
        is_good = job_agree() && collect(bench, done, &own);
    }
    if (directory != NULL) (void)closedir(directory);
    leave(bench);
    if (!is_good) return false;
    if (job.rank == 0 && bench->options->cleanup) {
        int64_t removed = 0;
        const double begin = now_seconds();
        clean_up(bench, test, &removed);
        done->cleanup_seconds = now_seconds() - begin;
        done->removed = (double)removed;
    }
    return job_agree();
}
