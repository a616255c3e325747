#define _GNU_SOURCE
#include "cleaner.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "job.h"
#include "tree.h"

/* What a message begins with; the path and its end follow. */
static const char SAY_KIND[] = {[LEFT_FILE] = 'f', [LEFT_DIRECTORY] = 'd', [LEFT_TREE] = 't'};
static const char SAY_FORGET = '-';

/* Other processes of the job may still be making files in a tree, until they die as well. */
enum { TREE_TRIES = 100, TREE_REST_MICROSECONDS = 50000 };

static struct {
    int socket; /* To the child; negative: there is none. */
    pid_t child;
} cleaner = {.socket = -1};

/* What a launcher hands down has low numbers. close_range would ask for a C library of 2021. */
enum { HANDLES_MAX = 4096 };

/* A path to remove; the child's list, the last one first. */
struct item {
    struct item *next;
    char kind;
    char path[];
};

static void forget(struct item **list) {
    while (*list != NULL) {
        struct item *item = *list;
        *list = item->next;
        free(item);
    }
}

/* Nobody hears of an error here: the job is dead already. */
static void remove_all(const struct item *list) {
    for (const struct item *item = list; item != NULL; item = item->next) {
        if (item->kind == SAY_KIND[LEFT_FILE]) (void)unlink(item->path);
    }
    for (const struct item *item = list; item != NULL; item = item->next) {
        if (item->kind == SAY_KIND[LEFT_DIRECTORY]) (void)rmdir(item->path);
        for (int i = 0; item->kind == SAY_KIND[LEFT_TREE] && i < TREE_TRIES; i++) {
            if (tree_remove(item->path, NULL)) break;
            (void)usleep(TREE_REST_MICROSECONDS);
        }
    }
}

/* The child: until its parent ends, one way or another. */
static void child_main(int own) {
    char message[PATH_MAX + 1];
    struct item *list = NULL;
    const int ignored[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE};
    for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++) {
        (void)signal(ignored[i], SIG_IGN);
    }
    /* Not of the parent's group, which mpiexec kills; none of its files, whose end mpiexec waits for. */
    (void)setsid();
    if (dup2(own, 0) < 0) _exit(1);
    for (int handle = 1; handle < HANDLES_MAX; handle++) {
        (void)close(handle);
    }
    for (;;) {
        const ssize_t size = recv(0, message, sizeof message, 0);
        if (size < 0 && errno == EINTR) continue;
        if (size <= 0) break;
        if (message[0] == SAY_FORGET) {
            forget(&list);
            continue;
        }
        struct item *item = malloc(sizeof *item + (size_t)size);
        if (item == NULL) continue;
        item->next = list;
        item->kind = message[0];
        memcpy(item->path, message + 1, (size_t)size - 1);
        list = item;
    }
    remove_all(list);
    _exit(0);
}

void cleaner_start(void) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
        fail("cannot start the cleaner: %s", strerror(errno));
        return;
    }
    const pid_t child = fork();
    if (child == 0) {
        (void)close(ends[0]);
        child_main(ends[1]);
    }
    (void)close(ends[1]);
    if (child < 0) {
        fail("cannot start the cleaner: %s", strerror(errno));
        (void)close(ends[0]);
        return;
    }
    cleaner.socket = ends[0];
    cleaner.child = child;
}

static void say(char what, const char *path) {
    char message[PATH_MAX + 1];
    const int size = snprintf(message, sizeof message, "%c%s", what, path);
    if (cleaner.socket < 0 || size >= (int)sizeof message) return;
    if (send(cleaner.socket, message, (size_t)size + 1, MSG_NOSIGNAL) < 0) {
        fail("the cleaner does not hear: %s", strerror(errno));
    }
}

void cleaner_expect(const char *path, enum leftover kind) {
    say(SAY_KIND[kind], path);
}

void cleaner_forget(void) {
    say(SAY_FORGET, "");
}

void cleaner_end(void) {
    if (cleaner.socket < 0) return;
    (void)close(cleaner.socket);
    cleaner.socket = -1;
    while (waitpid(cleaner.child, NULL, 0) < 0 && errno == EINTR) {
    }
}
