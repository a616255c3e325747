/*
 * Writes JSON: objects and arrays in one another, indented. Errors are those of the stream (ferror).
 */
#ifndef GUPFS_JSON_H
#define GUPFS_JSON_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { JSON_DEPTH_MAX = 16 };

struct json {
    FILE *file;
    int depth;
    bool is_begun[JSON_DEPTH_MAX + 1]; /* Whether something stands at that depth. */
    char ends[JSON_DEPTH_MAX + 1];
};

/* A writer that has written nothing. */
struct json json_begin(FILE *file);

/* `name` is NULL for what stands in an array, and for the outermost value. */
void json_object(struct json *json, const char *name);
void json_array(struct json *json, const char *name);
/* Ends the innermost object or array. */
void json_end(struct json *json);

/* Bytes that are no UTF-8 are written as they are. NULL is null. */
void json_text(struct json *json, const char *name, const char *value);
/* With all its digits; null if it is no finite number. */
void json_number(struct json *json, const char *name, double value);
void json_integer(struct json *json, const char *name, int64_t value);
void json_flag(struct json *json, const char *name, bool value);

/* A number with its name. */
struct json_member {
    const char *name;
    double value;
};

/* An object that stands in an array: a process, thread or node ("who") with its number, and figures of it. */
void json_row(struct json *json, const char *who, int64_t number, const struct json_member *members, size_t count);
/* The same of {"name", value}, ... */
#define JSON_ROW(json, who, number, ...)                                             \
    json_row(json, who, number, (const struct json_member[]){__VA_ARGS__},           \
             sizeof((const struct json_member[]){__VA_ARGS__}) / sizeof(struct json_member))

#endif
