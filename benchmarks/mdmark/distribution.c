#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "mdmark.h"

/* Bytes and rows of a file of distributions. */
enum { TEXT_MAX = 8 << 20, ROWS_MAX = 200000, COUNT_MAX = 100000000 };

int bin_of(int64_t value) {
    if (value < EXACT_BINS) return value < 0 ? 0 : (int)value;
    const int octave = 63 - __builtin_clzll((unsigned long long)value);
    const int part = (int)(value >> (octave - 2)) & (OCTAVE_BINS - 1);
    const int bin = EXACT_BINS + (octave - 4) * OCTAVE_BINS + part;
    return bin < BINS ? bin : BINS - 1;
}

int64_t bin_first(int bin) {
    if (bin < EXACT_BINS) return bin;
    const int octave = 4 + (bin - EXACT_BINS) / OCTAVE_BINS;
    const int part = (bin - EXACT_BINS) % OCTAVE_BINS;
    return (INT64_C(1) << octave) + ((int64_t)part << (octave - 2));
}

int64_t bin_last(int bin) {
    return bin < EXACT_BINS ? bin : bin_first(bin + 1) - 1;
}

static void histogram_write(FILE *to, const char *what, int level, const struct histogram *histogram) {
    for (int bin = 0; bin < BINS; bin++) {
        if (histogram->counts[bin] <= 0) continue;
        (void)fputs(what, to);
        if (level >= 0) (void)fprintf(to, " %d", level);
        (void)fprintf(to, " %lld %lld %.0f\n", (long long)bin_first(bin), (long long)bin_last(bin),
                      histogram->counts[bin]);
    }
}

static bool is_empty(const struct histogram *histogram) {
    for (int bin = 0; bin < BINS; bin++) {
        if (histogram->counts[bin] > 0) return false;
    }
    return true;
}

void profile_write(FILE *to, const struct tree_counts *counts) {
    (void)fputs("# Distributions for mdmark: how many directories of a level have from FIRST to LAST files\n"
                "# (directories), how many files have FIRST to LAST bytes.\n"
                "# files|directories LEVEL FIRST LAST COUNT, sizes FIRST LAST COUNT\n",
                to);
    for (int level = 0; level < LEVELS_MAX; level++) {
        histogram_write(to, "files", level, &counts->levels[level].files);
        histogram_write(to, "directories", level, &counts->levels[level].directories);
    }
    if (is_empty(&counts->sizes)) {
        (void)fputs("sizes 0 0 1\n", to);
    } else {
        histogram_write(to, "sizes", -1, &counts->sizes);
    }
}

/* Adds a row; false: it has `fail`ed. */
static bool add(struct distribution *to, int64_t first, int64_t last, int64_t weight) {
    if (weight == 0) return true;
    const uint64_t before = to->count > 0 ? to->rows[to->count - 1].until : 0;
    /* The room doubles whenever the count is a power of two. */
    if ((to->count & (to->count - 1)) == 0) {
        const size_t room = to->count == 0 ? 1 : 2 * (size_t)to->count;
        struct draw_row *rows = realloc(to->rows, room * sizeof *rows);
        if (rows == NULL) {
            fail("no memory for the distributions");
            return false;
        }
        to->rows = rows;
    }
    to->rows[to->count++] = (struct draw_row){.first = first, .last = last, .until = before + (uint64_t)weight};
    return true;
}

/* Takes one line apart: `what` and up to four numbers. Returns how many, or -1 if one is none. */
static int split(char *line, char **what, int64_t numbers[4]) {
    char *rest = NULL;
    int count = 0;
    *what = strtok_r(line, " \t\r", &rest);
    for (char *word = strtok_r(NULL, " \t\r", &rest); word != NULL; word = strtok_r(NULL, " \t\r", &rest)) {
        if (count == 4 || !parse_number(word, 0, INT64_C(1) << 52, &numbers[count])) return -1;
        count++;
    }
    return count;
}

/* One line of the file; an error, or NULL. */
static const char *read_line(struct profile *profile, char *line) {
    char *what = NULL;
    int64_t numbers[4];
    line[strcspn(line, "#")] = '\0';
    const int count = split(line, &what, numbers);
    if (what == NULL) return NULL;
    const bool is_size = strcmp(what, "sizes") == 0;
    const bool is_files = strcmp(what, "files") == 0;
    if (!is_size && !is_files && strcmp(what, "directories") != 0) return "it begins with none of files, directories, sizes";
    if (count != (is_size ? 3 : 4)) {
        return is_size ? "sizes is followed by FIRST LAST COUNT" : "what follows is LEVEL FIRST LAST COUNT";
    }
    const int64_t *range = is_size ? numbers : numbers + 1;
    if (range[0] > range[1]) return "FIRST is larger than LAST";
    if (!is_size && numbers[0] >= LEVELS_MAX) return "levels are 0 to 31";
    if (!is_size && range[1] > COUNT_MAX) return "LAST is larger than 100000000";
    struct distribution *to = &profile->sizes;
    if (!is_size) {
        const int level = (int)numbers[0];
        to = is_files ? &profile->files[level] : &profile->directories[level];
        if (level >= profile->levels) profile->levels = level + 1;
    }
    if (to->count == ROWS_MAX) return "too many rows of a kind";
    (void)add(to, range[0], range[1], range[2]);
    return NULL;
}

/* The text, line for line; `fail`s. The text is taken apart. */
static void read_text(struct profile *profile, const char *path) {
    char *rest = profile->text;
    for (int number = 1; rest != NULL; number++) {
        char *line = strsep(&rest, "\n");
        const char *error = read_line(profile, line);
        if (error == NULL) continue;
        fail("%s, line %d: %s", path, number, error);
        return;
    }
    if (profile->levels == 0) {
        fail("%s: no distribution of files or directories", path);
    } else if (profile->sizes.count == 0) {
        fail("%s: no distribution of sizes", path);
    }
    for (int level = 0; level < profile->levels; level++) {
        if (profile->files[level].count == 0 || profile->directories[level].count == 0) {
            fail("%s: files or directories of level %d are missing", path, level);
        }
    }
}

/* The whole file, process 0; returns its size, 0 if it `fail`ed. */
static int64_t file_load(struct profile *profile, const char *path) {
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        fail("cannot open the distributions %s: %s", path, strerror(errno));
        return 0;
    }
    profile->text = malloc(TEXT_MAX + 1);
    size_t size = 0;
    if (profile->text == NULL) {
        fail("no memory for the distributions");
    } else {
        size = fread(profile->text, 1, TEXT_MAX + 1, file);
        if (ferror(file)) {
            fail("cannot read the distributions %s: %s", path, strerror(errno));
        } else if (size > TEXT_MAX) {
            fail("%s: more than %d bytes are no distributions", path, TEXT_MAX);
        } else if (memchr(profile->text, '\0', size) != NULL) {
            fail("%s: this is no text", path);
        } else {
            profile->text[size] = '\0';
        }
    }
    (void)fclose(file);
    return (int64_t)size;
}

bool profile_read(struct profile *profile, const char *path) {
    int64_t size = (int64_t)strlen(PROFILE_BUILTIN);
    if (path == NULL) {
        profile->text = strdup(PROFILE_BUILTIN);
        path = "the built-in distributions";
    } else {
        if (job.rank == 0) size = file_load(profile, path);
        if (!job_agree()) return false;
        job_broadcast(&size, sizeof size);
        if (job.rank != 0) profile->text = malloc((size_t)size + 1);
    }
    if (profile->text == NULL) fail("no memory for the distributions");
    if (!job_agree()) return false;
    job_broadcast(profile->text, (size_t)size + 1);
    read_text(profile, path);
    return job_agree();
}

void profile_free(struct profile *profile) {
    for (int level = 0; level < LEVELS_MAX; level++) {
        free(profile->files[level].rows);
        free(profile->directories[level].rows);
    }
    free(profile->sizes.rows);
    free(profile->text);
    *profile = (struct profile){0};
}

static int64_t draw(const struct distribution *of, struct stream *stream) {
    const uint64_t at = stream_below(stream, of->rows[of->count - 1].until);
    int low = 0;
    int high = of->count - 1;
    while (low < high) {
        const int middle = low + (high - low) / 2;
        if (of->rows[middle].until > at) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    const struct draw_row *row = &of->rows[low];
    return row->first + (int64_t)stream_below(stream, (uint64_t)(row->last - row->first) + 1);
}

/* Below the last level that the file has, its distributions hold. */
static int level_in(const struct profile *profile, int level) {
    return level < profile->levels ? level : profile->levels - 1;
}

int64_t draw_files(const struct profile *profile, int level, struct stream *stream) {
    return draw(&profile->files[level_in(profile, level)], stream);
}

int64_t draw_directories(const struct profile *profile, int level, struct stream *stream) {
    return draw(&profile->directories[level_in(profile, level)], stream);
}

int64_t draw_size(const struct profile *profile, struct stream *stream) {
    return draw(&profile->sizes, stream);
}
