#define _GNU_SOURCE
#include "options.h"

#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "job.h"
#include "text.h"

enum { ROWS_MAX = 64, LETTER_HELP = OPTION_LONG - 1 };

/* An option as it is typed. */
static const char *spell(const struct option_row *row, char text[64]) {
    if (row->letter < OPTION_LONG) {
        (void)snprintf(text, 64, "-%c", row->letter);
    } else {
        (void)snprintf(text, 64, "--%s", row->name);
    }
    return text;
}

static bool takes_value(const struct option_row *row) {
    return row->kind != OPTION_FLAG && row->kind != OPTION_OWN_FLAG;
}

static const struct option_row *find(const struct option_row *rows, int letter) {
    for (; rows->letter != 0; rows++) {
        if (rows->letter == letter) return rows;
    }
    return NULL;
}

int64_t numbers_largest(const struct numbers *numbers) {
    int64_t most = numbers->values[0];
    for (int i = 1; i < numbers->count; i++) {
        if (numbers->values[i] > most) most = numbers->values[i];
    }
    return most;
}

static bool has(const struct numbers *numbers, int64_t number) {
    for (int i = 0; i < numbers->count; i++) {
        if (numbers->values[i] == number) return true;
    }
    return false;
}

static bool read_numbers(const struct option_row *row, struct numbers *numbers, const char *value) {
    char digits[32];
    numbers->count = 0;
    for (;;) {
        const size_t length = strcspn(value, ",");
        if (numbers->count == NUMBERS_MAX || length >= sizeof digits) return false;
        memcpy(digits, value, length);
        digits[length] = '\0';
        int64_t number = 0;
        if (!parse_number(digits, row->least, row->most, &number) || has(numbers, number)) return false;
        numbers->values[numbers->count++] = number;
        if (value[length] == '\0') return true;
        value += length + 1;
    }
}

const char *options_word(const char *words, int index, size_t *length) {
    for (;; words++) {
        *length = strcspn(words, ",");
        if (index == 0) return words;
        index--;
        words += *length;
        if (*words == '\0') return NULL;
    }
}

static bool read_words(const struct option_row *row, bool *given, const char *value) {
    size_t length = 0;
    size_t other = 0;
    for (int i = 0; options_word(row->what, i, &length) != NULL; i++) {
        given[i] = false;
    }
    for (int i = 0;; i++) {
        const char *word = options_word(value, i, &length);
        int found = 0;
        if (word == NULL) return true;
        for (;; found++) {
            const char *known = options_word(row->what, found, &other);
            if (known == NULL) return false;
            if (other == length && strncmp(known, word, length) == 0) break;
        }
        given[found] = true;
    }
}

static bool read_row(const struct option_row *row, void *options, const char *value) {
    char text[64];
    void *field = (char *)options + row->at;
    switch (row->kind) {
    case OPTION_FLAG: *(bool *)field = true; return true;
    case OPTION_TEXT: *(const char **)field = value; return true;
    case OPTION_OWN:
    case OPTION_OWN_FLAG: return row->read(options, row->letter, value);
    case OPTION_NUMBER:
        if (parse_number(value, row->least, row->most, field)) return true;
        fail("%s %s: not a number from %lld to %lld", spell(row, text), value, (long long)row->least,
             (long long)row->most);
        return false;
    case OPTION_SIZE:
        if (parse_size(value, field) && *(int64_t *)field >= row->least) return true;
        fail("%s %s: %s is bytes, or a number with K, M or G%s", spell(row, text), value, row->what,
             row->least > 0 ? ", and not 0" : "");
        return false;
    case OPTION_NUMBERS:
        if (read_numbers(row, field, value)) return true;
        fail("%s %s: not a list of at most %d different numbers from %lld to %lld, with commas between", spell(row, text),
             value, NUMBERS_MAX, (long long)row->least, (long long)row->most);
        return false;
    case OPTION_WORDS:
        if (read_words(row, field, value)) return true;
        fail("%s %s: only some of %s, with commas between", spell(row, text), value, row->what);
        return false;
    }
    return false;
}

/* What getopt says no to; `optopt` is the letter. */
static void refuse(const struct option_row *rows, int letter) {
    char text[64];
    const struct option_row *row = optopt == 0 ? NULL : find(rows, optopt);
    if (letter == ':' && row != NULL) {
        fail("%s needs a value (see --help)", spell(row, text));
    } else if (optopt == LETTER_HELP) {
        fail("--help takes no value");
    } else if (row != NULL) {
        fail("--%s takes no value (see --help)", row->name);
    } else if (optopt != 0) {
        fail("unknown option -%c (see --help)", optopt);
    } else {
        fail("unknown option (see --help)");
    }
}

enum options_asked options_read_rows(const struct option_row *rows, void *options, int argc, char **argv) {
    char letters[2 * ROWS_MAX + 2] = ":";
    struct option names[ROWS_MAX + 2] = {{"help", no_argument, NULL, LETTER_HELP}};
    size_t length = 1;
    int named = 1;
    for (const struct option_row *row = rows; row->letter != 0; row++) {
        if (row - rows == ROWS_MAX) {
            fail("this program has more than %d options", ROWS_MAX);
            return OPTIONS_BAD;
        }
        if (row->letter < OPTION_LONG) {
            letters[length++] = (char)row->letter;
            if (takes_value(row)) letters[length++] = ':';
        }
        if (row->name == NULL) continue;
        names[named++] = (struct option){
            row->name, takes_value(row) ? required_argument : no_argument, NULL, row->letter};
    }
    int letter = 0;
    opterr = 0;
    while ((letter = getopt_long(argc, argv, letters, names, NULL)) != -1) {
        if (letter == LETTER_HELP) return OPTIONS_HELP;
        const struct option_row *row = find(rows, letter);
        if (row == NULL) {
            refuse(rows, letter);
            return OPTIONS_BAD;
        }
        if (!read_row(row, options, optarg)) return OPTIONS_BAD;
    }
    if (optind == argc) return OPTIONS_RUN;
    fail("%s: not an option (see --help)", argv[optind]);
    return OPTIONS_BAD;
}
