#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "mdmark.h"

/* What the key of a directory is mixed with, for each use of its own. */
enum { USE_COUNTS = 1, USE_NAMES, USE_SIZES, USE_CONTENTS, USE_CHILDREN };

/* The stream of one use and one entry of a directory. */
static struct stream stream_of(const struct node *node, int use, int32_t entry) {
    return (struct stream){.state = mix(mix(node->key + (uint64_t)use) + (uint64_t)entry)};
}

void entry_name(const struct node *node, int32_t entry, char name[NAME_BYTES]) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789";
    struct stream stream = stream_of(node, USE_NAMES, entry);
    const int length = 2 + (int)stream_below(&stream, 11);
    for (int i = 0; i < length; i++) {
        name[i] = letters[stream_below(&stream, i == 0 ? 26 : sizeof letters - 1)];
    }
    /* The number makes it unique. */
    (void)snprintf(name + length, (size_t)(NAME_BYTES - length), ".%x", (unsigned)entry);
}

int64_t file_size(const struct plan *plan, const struct node *node, int32_t file) {
    struct stream stream = stream_of(node, USE_SIZES, file);
    const int64_t size = draw_size(plan->profile, &stream);
    return size < options.file_bytes ? size : options.file_bytes;
}

struct stream file_contents(const struct node *node, int32_t file) {
    return stream_of(node, USE_CONTENTS, file);
}

/* A new node; negative: it has `fail`ed. */
static int64_t node_add(struct plan *plan, const struct node *node) {
    if (plan->count == plan->room) {
        const int64_t room = plan->room == 0 ? 1024 : 2 * plan->room;
        struct node *nodes = realloc(plan->nodes, (size_t)room * sizeof *nodes);
        if (nodes == NULL) {
            fail("no memory for a tree of %lld directories", (long long)room);
            return -1;
        }
        plan->nodes = nodes;
        plan->room = room;
    }
    plan->nodes[plan->count] = *node;
    return plan->count++;
}

/* Entries so far: the root is none. */
static int64_t entries(const struct plan *plan) {
    return plan->files + plan->count - 1;
}

/* Whether the tree ends here, because one more entry of `size` bytes would be beyond a limit. */
static bool is_cut(struct plan *plan, int64_t size) {
    if (plan->limit != NULL) return true;
    if (entries(plan) >= options.entries) plan->limit = "-e";
    if (plan->bytes + size > options.bytes) plan->limit = "-b";
    return plan->limit != NULL;
}

/* A directory with all that is below it: its files, then its subdirectories one after another. */
static void visit(struct plan *plan, const struct node *begin) {
    struct node node = *begin;
    struct stream stream = stream_of(&node, USE_COUNTS, 0);
    const int64_t files = draw_files(plan->profile, node.level, &stream);
    int64_t directories = draw_directories(plan->profile, node.level, &stream);
    const int64_t index = node_add(plan, &node);
    if (index < 0) return;
    if (node.level + 1 > plan->levels) plan->levels = node.level + 1;
    while (node.files < files) {
        const int64_t size = file_size(plan, &node, node.files);
        if (is_cut(plan, size)) break;
        plan->bytes += size;
        plan->files++;
        node.files++;
    }
    plan->nodes[index].files = node.files;
    if (directories > 0 && node.level + 1 >= options.levels) {
        /* Not an end: the tree goes on elsewhere. */
        directories = 0;
        plan->is_shallow = true;
    }
    for (int32_t i = 0; i < directories && !job_should_stop(); i++) {
        if (is_cut(plan, 0)) return;
        const struct stream child = stream_of(&node, USE_CHILDREN, i);
        visit(plan, &(struct node){
                        .key = child.state,
                        .parent = index,
                        .level = node.level + 1,
                        .entry = node.files + i,
                    });
    }
}

static bool levels_sort(struct plan *plan) {
    plan->by_level = malloc((size_t)plan->count * sizeof *plan->by_level);
    if (plan->by_level == NULL) {
        fail("no memory for a tree of %lld directories", (long long)plan->count);
        return false;
    }
    int64_t next[DEPTH_MAX + 1] = {0};
    for (int64_t i = 0; i < plan->count; i++) {
        plan->level_begin[plan->nodes[i].level + 1]++;
    }
    for (int level = 0; level < plan->levels; level++) {
        plan->level_begin[level + 1] += plan->level_begin[level];
        next[level] = plan->level_begin[level];
    }
    for (int64_t i = 0; i < plan->count; i++) {
        plan->by_level[next[plan->nodes[i].level]++] = i;
    }
    return true;
}

bool plan_make(struct plan *plan, const struct profile *profile) {
    plan->profile = profile;
    visit(plan, &(struct node){.key = mix((uint64_t)options.seed + 1), .parent = -1});
    if (job_should_stop() || !levels_sort(plan)) return false;
    if (entries(plan) > 0) return true;
    fail("seed %lld makes an empty tree of these distributions and limits", (long long)options.seed);
    return false;
}

void plan_free(struct plan *plan) {
    free(plan->nodes);
    free(plan->by_level);
    plan->nodes = NULL;
    plan->by_level = NULL;
}

bool node_path(const struct plan *plan, int64_t index, char path[PATH_MAX]) {
    /* From its end. */
    char room[PATH_MAX];
    size_t at = sizeof room - 1;
    room[at] = '\0';
    for (; plan->nodes[index].parent >= 0; index = plan->nodes[index].parent) {
        char name[NAME_BYTES];
        entry_name(&plan->nodes[plan->nodes[index].parent], plan->nodes[index].entry, name);
        const size_t length = strlen(name);
        if (at < length + 1) {
            fail("the tree is too deep for its names");
            return false;
        }
        if (room[at] != '\0') room[--at] = '/';
        at -= length;
        memcpy(room + at, name, length);
    }
    memcpy(path, room + at, sizeof room - at);
    return true;
}

void plan_print(FILE *to, const struct plan *plan) {
    for (int64_t i = 0; i < plan->count; i++) {
        const struct node *node = &plan->nodes[i];
        char path[PATH_MAX];
        if (!node_path(plan, i, path)) return;
        const char *slash = path[0] == '\0' ? "" : "/";
        (void)fprintf(to, "d %d %d %s\n", (int)node->level, (int)node->files, path[0] == '\0' ? "." : path);
        for (int32_t file = 0; file < node->files; file++) {
            char name[NAME_BYTES];
            entry_name(node, file, name);
            (void)fprintf(to, "f %lld %s%s%s\n", (long long)file_size(plan, node, file), path, slash, name);
        }
    }
}
