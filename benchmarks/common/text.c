#define _GNU_SOURCE
#include "text.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cleaner.h"
#include "job.h"

bool parse_number(const char *text, int64_t least, int64_t most, int64_t *number) {
    int64_t value = 0;
    if (*text == '\0') return false;
    for (; *text != '\0'; text++) {
        if (*text < '0' || *text > '9') return false;
        if (__builtin_mul_overflow(value, 10, &value)) return false;
        if (__builtin_add_overflow(value, *text - '0', &value)) return false;
    }
    if (value < least || value > most) return false;
    *number = value;
    return true;
}

bool parse_size(const char *text, int64_t *size) {
    static const char units[] = "KMG";
    char digits[32];
    const size_t length = strlen(text);
    if (length == 0 || length >= sizeof digits) return false;
    memcpy(digits, text, length + 1);
    int64_t unit = 1;
    const char last = (char)(digits[length - 1] & ~0x20);
    const char *found = last >= 'A' ? strchr(units, last) : NULL;
    if (found != NULL && *found != '\0') {
        unit = INT64_C(1) << (10 * (found - units + 1));
        digits[length - 1] = '\0';
    }
    int64_t value = 0;
    if (!parse_number(digits, 0, INT64_MAX, &value)) return false;
    return !__builtin_mul_overflow(value, unit, size);
}

bool report_open(struct report *report, const char *base) {
    report->path[0] = '\0';
    report->file = stdout;
    if (base == NULL) return true;
    report->file = NULL;
    char stamp[32];
    const time_t now = time(NULL);
    struct tm parts;
    if (localtime_r(&now, &parts) == NULL ||
        strftime(stamp, sizeof stamp, "%Y%m%d_%H%M%S", &parts) == 0) {
        fail("cannot tell the date");
        return false;
    }
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s_%s", base, stamp) >= (int)sizeof path) {
        fail("the name of the report is too long");
        return false;
    }
    const int file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file < 0) {
        fail("cannot make the report %s: %s", path, strerror(errno));
        return false;
    }
    memcpy(report->path, path, sizeof path);
    report->file = fdopen(file, "w");
    if (report->file == NULL) {
        fail("cannot write the report %s: %s", path, strerror(errno));
        (void)close(file);
        (void)unlink(path);
        report->path[0] = '\0';
        return false;
    }
    cleaner_expect(report->path, LEFT_FILE);
    return true;
}

void report_command(FILE *to, int argc, char **argv) {
    (void)fputs("\nCommand:", to);
    for (int i = 0; i < argc; i++) {
        (void)fprintf(to, " %s", argv[i]);
    }
    (void)fputc('\n', to);
}

void report_close(struct report *report) {
    if (report->file == NULL) return;
    const char *name = report->path[0] == '\0' ? "standard output" : report->path;
    bool is_good = fflush(report->file) == 0 && !ferror(report->file);
    const int error = errno;
    if (report->file != stdout) {
        is_good = fclose(report->file) == 0 && is_good;
    }
    report->file = NULL;
    if (!is_good) {
        fail("cannot write the report to %s: %s", name, strerror(error));
    }
}

void report_drop(struct report *report) {
    if (report->file != NULL && report->file != stdout) {
        (void)fclose(report->file);
    }
    if (report->path[0] != '\0') {
        (void)unlink(report->path);
    }
    report->file = NULL;
    report->path[0] = '\0';
}
