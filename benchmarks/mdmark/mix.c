#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "mdmark.h"

/*
 * Each subprocess wanders through the tree and calls what chance says, in the directory where it is. It
 * removes only what it has made: the tree keeps its shape however long the mix lasts, and is whole after it.
 */

/* Names that begin so belong to the mix: nobody enters such a directory, so that it can be removed. */
static const char OWN_PREFIX[] = "mix-";

enum {
    NAMES_MAX = 4096,        /* Entries of a directory that a subprocess knows. */
    MADE_MAX = 1024,         /* Files and directories of its own that it has at a time. */
    LOOK_NANOSECONDS = 20000000,
};

/* Calls in a thousand. What cannot be done (up from the root, down where no directory is) becomes another. */
static const int WEIGHTS[CALL_COUNT] = {
    [CALL_STAT] = 500, [CALL_UTIME] = 160, [CALL_CREATE] = 80, [CALL_UNLINK] = 80, [CALL_MKDIR] = 20,
    [CALL_RMDIR] = 20, [CALL_DOWN] = 70,   [CALL_UP] = 70,
};

const char *call_name(enum call call) {
    static const char *const names[CALL_COUNT] = {"stat",  "utime",      "create",   "unlink", "mkdir",
                                                  "rmdir", "chdir_down", "chdir_up", "readdir"};
    return names[call];
}

/* In memory that parent and subprocesses share. */
struct slot {
    struct mixed mixed;
    atomic_bool is_done;
    char failure[FAILURE_TEXT_MAX];
};
struct shared {
    atomic_bool stop;
    struct slot slots[];
};

/* What it has made, below the root, and not yet removed. */
struct made {
    char *paths[MADE_MAX];
    int count;
};

struct wanderer {
    const struct run *run;
    struct shared *shared;
    struct slot *slot;
    struct stream stream;
    int number;             /* Among all subprocesses of the job. */
    int root;
    int depth;
    char here[PATH_MAX];    /* Below the root; empty: there. */
    char (*names)[256];
    bool is_directory[NAMES_MAX];
    int name_count;
    int directory_count;
    struct made files;
    struct made directories;
    int64_t next_name;
};

/* `place` is below the root. */
static void wanderer_fail(struct wanderer *wanderer, const char *what, const char *name, const char *place) {
    char *text = wanderer->slot->failure;
    const char *error = strerror(errno);
    if (snprintf(text, FAILURE_TEXT_MAX, "mix: cannot %s %s in %s/%s: %s", what, name, wanderer->run->root, place,
                 error) >= FAILURE_TEXT_MAX) {
        (void)snprintf(text, FAILURE_TEXT_MAX, "mix: cannot %s %s: %s", what, name, error);
    }
}

/* Counts a call; one that found its file gone is refused. False: it failed for another reason. */
static bool count(struct wanderer *wanderer, enum call call, bool is_good, const char *name) {
    wanderer->slot->mixed.calls[call]++;
    if (is_good) return true;
    if (errno == ENOENT) {
        wanderer->slot->mixed.refused[call]++;
        return true;
    }
    wanderer_fail(wanderer, call_name(call), name, wanderer->here);
    return false;
}

static bool kind_is_directory(const struct dirent *entry) {
    struct stat status;
    if (entry->d_type != DT_UNKNOWN) return entry->d_type == DT_DIR;
    return lstat(entry->d_name, &status) == 0 && S_ISDIR(status.st_mode);
}

/* Reads the directory where it is; of a large one it knows a random choice. */
static bool look_around(struct wanderer *wanderer) {
    DIR *directory = opendir(".");
    uint64_t seen = 0;
    wanderer->name_count = 0;
    wanderer->directory_count = 0;
    if (directory == NULL) return count(wanderer, CALL_READDIR, false, ".");
    for (;;) {
        errno = 0;
        const struct dirent *entry = readdir(directory);
        if (entry == NULL) break;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        seen++;
        uint64_t at = seen - 1;
        if (at >= NAMES_MAX) at = stream_below(&wanderer->stream, seen);
        if (at >= NAMES_MAX) continue;
        (void)snprintf(wanderer->names[at], sizeof *wanderer->names, "%s", entry->d_name);
        wanderer->is_directory[at] =
            strncmp(entry->d_name, OWN_PREFIX, sizeof OWN_PREFIX - 1) != 0 && kind_is_directory(entry);
        if (wanderer->name_count < (int)at + 1) wanderer->name_count = (int)at + 1;
    }
    const int error = errno;
    (void)closedir(directory);
    for (int i = 0; i < wanderer->name_count; i++) {
        wanderer->directory_count += wanderer->is_directory[i];
    }
    errno = error;
    return count(wanderer, CALL_READDIR, error == 0, ".");
}

static bool go_up(struct wanderer *wanderer) {
    if (!count(wanderer, CALL_UP, chdir("..") == 0, "..")) return false;
    char *slash = strrchr(wanderer->here, '/');
    if (slash == NULL) slash = wanderer->here;
    *slash = '\0';
    wanderer->depth--;
    return look_around(wanderer);
}

static bool go_down(struct wanderer *wanderer) {
    int which = (int)stream_below(&wanderer->stream, (uint64_t)wanderer->directory_count);
    int index = 0;
    for (;; index++) {
        if (wanderer->is_directory[index] && which-- == 0) break;
    }
    const char *name = wanderer->names[index];
    const bool is_there = chdir(name) == 0;
    if (!count(wanderer, CALL_DOWN, is_there, name)) return false;
    if (!is_there) return true;
    const size_t length = strlen(wanderer->here);
    (void)snprintf(wanderer->here + length, sizeof wanderer->here - length, "%s%s", length > 0 ? "/" : "", name);
    wanderer->depth++;
    return look_around(wanderer);
}

/* Makes a file or a directory where it is. */
static bool make_own(struct wanderer *wanderer, enum call call) {
    char name[64];
    char path[PATH_MAX + 64];
    struct made *made = call == CALL_CREATE ? &wanderer->files : &wanderer->directories;
    (void)snprintf(name, sizeof name, "%s%d.%lld", OWN_PREFIX, wanderer->number, (long long)wanderer->next_name++);
    (void)snprintf(path, sizeof path, "%s%s%s", wanderer->here, *wanderer->here != '\0' ? "/" : "", name);
    bool is_made = false;
    if (call == CALL_CREATE) {
        const int file = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        is_made = file >= 0 && close(file) == 0;
    } else {
        is_made = mkdir(name, 0777) == 0;
    }
    if (!count(wanderer, call, is_made, name)) return false;
    if (!is_made) return true;
    made->paths[made->count] = strdup(path);
    if (made->paths[made->count] == NULL) {
        wanderer_fail(wanderer, "remember", name, wanderer->here);
        return false;
    }
    made->count++;
    return true;
}

/* Removes one of its own, wherever that is. */
static bool remove_own(struct wanderer *wanderer, struct made *made) {
    const bool is_file = made == &wanderer->files;
    const int index = (int)stream_below(&wanderer->stream, (uint64_t)made->count);
    char *path = made->paths[index];
    made->paths[index] = made->paths[--made->count];
    const bool is_gone = unlinkat(wanderer->root, path, is_file ? 0 : AT_REMOVEDIR) == 0;
    wanderer->slot->mixed.calls[is_file ? CALL_UNLINK : CALL_RMDIR]++;
    /* Nobody else removes it: that it is gone is an error like others. */
    if (!is_gone) wanderer_fail(wanderer, "remove", path, "");
    free(path);
    return is_gone;
}

static bool touch(struct wanderer *wanderer, enum call call) {
    struct stat status;
    const char *name = ".";
    if (wanderer->name_count > 0) {
        name = wanderer->names[stream_below(&wanderer->stream, (uint64_t)wanderer->name_count)];
    }
    const bool is_good = call == CALL_STAT ? fstatat(AT_FDCWD, name, &status, AT_SYMLINK_NOFOLLOW) == 0
                                           : utimensat(AT_FDCWD, name, NULL, AT_SYMLINK_NOFOLLOW) == 0;
    return count(wanderer, call, is_good, name);
}

static enum call draw_call(struct stream *stream) {
    int at = (int)stream_below(stream, 1000);
    int call = 0;
    while (call < CALL_COUNT - 1 && at >= WEIGHTS[call]) {
        at -= WEIGHTS[call++];
    }
    return (enum call)call;
}

/* One step. False: it failed. */
static bool step(struct wanderer *wanderer) {
    enum call call = draw_call(&wanderer->stream);
    if (call == CALL_UNLINK && wanderer->files.count == 0) call = CALL_CREATE;
    if (call == CALL_RMDIR && wanderer->directories.count == 0) call = CALL_MKDIR;
    if (call == CALL_CREATE && wanderer->files.count == MADE_MAX) call = CALL_UNLINK;
    if (call == CALL_MKDIR && wanderer->directories.count == MADE_MAX) call = CALL_RMDIR;
    if (call == CALL_DOWN && wanderer->directory_count == 0) call = CALL_UP;
    if (call == CALL_UP && wanderer->depth == 0) call = wanderer->directory_count > 0 ? CALL_DOWN : CALL_STAT;
    switch (call) {
    case CALL_STAT:
    case CALL_UTIME: return touch(wanderer, call);
    case CALL_CREATE:
    case CALL_MKDIR: return make_own(wanderer, call);
    case CALL_UNLINK: return remove_own(wanderer, &wanderer->files);
    case CALL_RMDIR: return remove_own(wanderer, &wanderer->directories);
    case CALL_DOWN: return go_down(wanderer);
    case CALL_UP: return go_up(wanderer);
    case CALL_READDIR:
    case CALL_COUNT: break;
    }
    return false;
}

/* Removes what is left of its own, after the time. */
static bool tidy_up(struct wanderer *wanderer) {
    const struct mixed mixed = wanderer->slot->mixed;
    bool is_good = true;
    while (is_good && wanderer->files.count > 0) {
        is_good = remove_own(wanderer, &wanderer->files);
    }
    while (is_good && wanderer->directories.count > 0) {
        is_good = remove_own(wanderer, &wanderer->directories);
    }
    wanderer->slot->mixed = mixed;
    return is_good;
}

/* The life of a subprocess. `gate` ends when all processes are ready. */
static void wander(struct wanderer *wanderer, int gate, pid_t parent) {
    char byte;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    wanderer->names = malloc(NAMES_MAX * sizeof *wanderer->names);
    if (wanderer->names == NULL) {
        wanderer_fail(wanderer, "remember", "names", "");
        _exit(1);
    }
    while (read(gate, &byte, 1) < 0 && errno == EINTR) {
    }
    const double begin = now_seconds();
    bool is_good = fchdir(wanderer->root) == 0 && look_around(wanderer);
    if (!is_good && wanderer->slot->failure[0] == '\0') wanderer_fail(wanderer, "enter", "the tree", "");
    while (is_good && !atomic_load_explicit(&wanderer->shared->stop, memory_order_relaxed)) {
        if (now_seconds() - begin >= (double)options.mix_seconds) break;
        is_good = step(wanderer);
    }
    wanderer->slot->mixed.seconds = now_seconds() - begin;
    is_good = tidy_up(wanderer) && is_good;
    atomic_store(&wanderer->slot->is_done, is_good);
    _exit(is_good ? 0 : 1);
}

/* Starts subprocesses that wait at the gate; returns how many there are. */
static int start(const struct run *run, struct shared *shared, int root, const int gate[2], pid_t *children) {
    const pid_t parent = getpid();
    const int wanted = (int)options.mix_processes;
    (void)fflush(NULL);
    for (int i = 0; i < wanted; i++) {
        const int number = job.rank * wanted + i;
        children[i] = fork();
        if (children[i] < 0) {
            fail("cannot start subprocess %d: %s", i, strerror(errno));
            return i;
        }
        if (children[i] > 0) continue;
        static struct wanderer wanderer;
        wanderer = (struct wanderer){
            .run = run,
            .shared = shared,
            .slot = &shared->slots[i],
            .stream = {.state = mix(mix((uint64_t)options.seed + 2) + (uint64_t)number)},
            .number = number,
            .root = root,
        };
        (void)close(gate[1]);
        wander(&wanderer, gate[0], parent);
    }
    return wanted;
}

/* A subprocess has ended: did it do what it should? */
static void child_ended(const struct slot *slot, int index, int status) {
    if (slot->failure[0] != '\0') {
        fail("%s", slot->failure);
    } else if (!atomic_load(&slot->is_done)) {
        fail("mix: subprocess %d ended with %s %d", index, WIFSIGNALED(status) ? "signal" : "status",
             WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    }
}

/* Waits for the subprocesses, and looks for failures of other processes meanwhile. Those that ended are 0. */
static void wait_for_children(struct shared *shared, pid_t *children, int count) {
    const struct timespec rest = {.tv_nsec = LOOK_NANOSECONDS};
    int left = count;
    for (;;) {
        for (int i = 0; i < count; i++) {
            int status = 0;
            if (children[i] == 0) continue;
            const pid_t ended = waitpid(children[i], &status, WNOHANG);
            if (ended == 0 || (ended < 0 && errno == EINTR)) continue;
            if (ended < 0) {
                fail("cannot wait for subprocess %d: %s", i, strerror(errno));
            } else {
                child_ended(&shared->slots[i], i, status);
            }
            children[i] = 0;
            left--;
        }
        if (left == 0) return;
        job_exchange_stops();
        if (job_should_stop()) atomic_store(&shared->stop, true);
        (void)nanosleep(&rest, NULL);
    }
}

/* Adds the calls of all subprocesses; returns the time of the slowest. */
static double calls_add(const struct shared *shared, struct result *own) {
    double longest = 0;
    for (int i = 0; i < options.mix_processes; i++) {
        const struct mixed *mixed = &shared->slots[i].mixed;
        for (int call = 0; call < CALL_COUNT; call++) {
            own->operations += mixed->calls[call];
        }
        if (mixed->seconds > longest) longest = mixed->seconds;
    }
    return longest;
}

bool mix_run(struct run *run, struct result *own, struct mixed *own_mixed) {
    const size_t bytes = sizeof(struct shared) + (size_t)options.mix_processes * sizeof(struct slot);
    pid_t *children = calloc((size_t)options.mix_processes, sizeof *children);
    struct shared *shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    const int root = open(run->root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int gate[2] = {-1, -1};
    int started = 0;
    *own = (struct result){0};
    if (children == NULL || shared == MAP_FAILED) {
        fail("no memory for %lld subprocesses", (long long)options.mix_processes);
    } else if (root < 0) {
        fail("cannot open %s: %s", run->root, strerror(errno));
    } else if (pipe2(gate, O_CLOEXEC) != 0) {
        fail("cannot make a pipe: %s", strerror(errno));
    } else {
        started = start(run, shared, root, gate, children);
    }
    const double system_begin = system_seconds();
    job_exchange_stops();
    job_barrier();
    if (started > 0 && job_should_stop()) atomic_store(&shared->stop, true);
    if (gate[1] >= 0) (void)close(gate[1]);
    if (started > 0) wait_for_children(shared, children, started);
    job_exchange_stops();
    job_barrier();
    own->system_seconds = system_seconds() - system_begin;
    if (gate[0] >= 0) (void)close(gate[0]);
    if (root >= 0) (void)close(root);
    const bool is_good = job_agree();
    if (is_good) {
        own->seconds = calls_add(shared, own);
        /* What comes after that is tidying up. */
        own->elapsed = own->seconds;
        for (int i = 0; i < started; i++) {
            own_mixed[i] = shared->slots[i].mixed;
        }
    }
    if (shared != MAP_FAILED) (void)munmap(shared, bytes);
    free(children);
    return is_good;
}
