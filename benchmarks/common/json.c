#include "json.h"

#include <math.h>

struct json json_begin(FILE *file) {
    return (struct json){.file = file};
}

static void write_text(FILE *file, const char *text) {
    (void)fputc('"', file);
    for (; *text != '\0'; text++) {
        const unsigned char byte = (unsigned char)*text;
        if (byte == '"' || byte == '\\') {
            (void)fprintf(file, "\\%c", byte);
        } else if (byte < 0x20) {
            (void)fprintf(file, "\\u%04x", byte);
        } else {
            (void)fputc(byte, file);
        }
    }
    (void)fputc('"', file);
}

static void write_line_end(const struct json *json) {
    (void)fputc('\n', json->file);
    for (int i = 0; i < json->depth; i++) {
        (void)fputs("  ", json->file);
    }
}

/* What stands before a value. */
static void lead(struct json *json, const char *name) {
    if (json->is_begun[json->depth]) (void)fputc(',', json->file);
    json->is_begun[json->depth] = true;
    if (json->depth > 0) write_line_end(json);
    if (name == NULL) return;
    write_text(json->file, name);
    (void)fputs(": ", json->file);
}

static void open(struct json *json, const char *name, char begin, char end) {
    lead(json, name);
    (void)fputc(begin, json->file);
    json->depth++;
    json->is_begun[json->depth] = false;
    json->ends[json->depth] = end;
}

void json_object(struct json *json, const char *name) {
    open(json, name, '{', '}');
}

void json_array(struct json *json, const char *name) {
    open(json, name, '[', ']');
}

void json_end(struct json *json) {
    const char end = json->ends[json->depth];
    const bool is_filled = json->is_begun[json->depth];
    json->depth--;
    if (is_filled) write_line_end(json);
    (void)fputc(end, json->file);
    if (json->depth == 0) (void)fputc('\n', json->file);
}

void json_text(struct json *json, const char *name, const char *value) {
    lead(json, name);
    if (value == NULL) {
        (void)fputs("null", json->file);
    } else {
        write_text(json->file, value);
    }
}

void json_number(struct json *json, const char *name, double value) {
    lead(json, name);
    if (isfinite(value)) {
        (void)fprintf(json->file, "%.17g", value);
    } else {
        (void)fputs("null", json->file);
    }
}

void json_integer(struct json *json, const char *name, int64_t value) {
    lead(json, name);
    (void)fprintf(json->file, "%lld", (long long)value);
}

void json_flag(struct json *json, const char *name, bool value) {
    lead(json, name);
    (void)fputs(value ? "true" : "false", json->file);
}

void json_row(struct json *json, const char *who, int64_t number, const struct json_member *members, size_t count) {
    json_object(json, NULL);
    json_integer(json, who, number);
    for (size_t i = 0; i < count; i++) {
        json_number(json, members[i].name, members[i].value);
    }
    json_end(json);
}
