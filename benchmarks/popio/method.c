#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "../common/cleaner.h"
#include "popio.h"

enum { TAG_TILE = 11 };

const char *method_word(enum method method) {
    static const char *const words[METHOD_COUNT] = {"collective", "independent", "pieces", "gather", "own"};
    return words[method];
}

const char *method_name(enum method method) {
    static const char *const names[METHOD_COUNT] = {"Collective", "Independent", "Pieces", "Gather", "Own"};
    return names[method];
}

bool method_path(const struct run *run, enum method method, int process, char path[PATH_MAX]) {
    char number[32] = "";
    if (method == OWN) (void)snprintf(number, sizeof number, ".%d", process);
    if (snprintf(path, PATH_MAX, "%s/popio.%s%s", run->directory, method_word(method), number) < PATH_MAX) return true;
    fail("the name of the directory is too long");
    return false;
}

static double system_seconds(void) {
    struct rusage usage;
    (void)getrusage(RUSAGE_SELF, &usage);
    return (double)usage.ru_stime.tv_sec + (double)usage.ru_stime.tv_usec / 1e6;
}

/* Whether a call of MPI went well; else it `fail`s. */
static bool went_well(int code, enum method method, const char *what, const char *path) {
    char text[MPI_MAX_ERROR_STRING + 1] = "";
    int length = 0;
    if (code == MPI_SUCCESS) return true;
    if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) text[0] = '\0';
    for (char *at = text; *at != '\0'; at++) {
        if (*at == '\n') *at = ' ';
    }
    fail("%s: cannot %s %s: %s", method_name(method), what, path, text[0] != '\0' ? text : "MPI does not say why");
    return false;
}

/* The pieces of an array as a type of MPI, as long as an array. */
static MPI_Datatype type_make(const struct share *share) {
    MPI_Datatype pieces = MPI_DATATYPE_NULL;
    MPI_Datatype array = MPI_DATATYPE_NULL;
    const size_t room = (size_t)share->count + 1;
    int *numbers = malloc(2 * room * sizeof *numbers);
    if (numbers == NULL) {
        fail("no memory for %d pieces", share->count);
        return MPI_DATATYPE_NULL;
    }
    for (int i = 0; i < share->count; i++) {
        numbers[i] = share->pieces[i].length;
        numbers[room + (size_t)i] = share->pieces[i].offset;
    }
    MPI_Type_indexed(share->count, numbers, numbers + room, MPI_DOUBLE, &pieces);
    MPI_Type_create_resized(pieces, 0, (MPI_Aint)(options.columns * options.rows * (int64_t)sizeof(double)), &array);
    MPI_Type_commit(&array);
    MPI_Type_free(&pieces);
    free(numbers);
    return array;
}

void methods_prepare(struct run *run) {
    MPI_Info_create(&run->hints);
    for (int i = 0; i < options.hint_count; i++) {
        char key[MPI_MAX_INFO_KEY + 1];
        const size_t length = strcspn(options.hints[i], "=");
        memcpy(key, options.hints[i], length);
        key[length] = '\0';
        MPI_Info_set(run->hints, key, options.hints[i] + length + 1);
    }
    if (!options.methods[GATHER] || job.rank != 0) return;
    run->whole = malloc((size_t)(options.columns * options.rows) * sizeof *run->whole);
    run->types = malloc((size_t)job.count * sizeof *run->types);
    run->requests = malloc((size_t)job.count * sizeof *run->requests);
    if (run->whole == NULL || run->types == NULL || run->requests == NULL) {
        fail("no memory for an array of %lld x %lld", (long long)options.columns, (long long)options.rows);
        free(run->types);
        run->types = NULL;
        return;
    }
    for (int process = 0; process < job.count; process++) {
        struct share share;
        share_make(&share, &run->layout, process);
        run->types[process] = type_make(&share);
        share_free(&share);
    }
}

void methods_free(struct run *run) {
    for (int process = 0; run->types != NULL && process < job.count; process++) {
        if (run->types[process] != MPI_DATATYPE_NULL) MPI_Type_free(&run->types[process]);
    }
    if (run->hints != MPI_INFO_NULL) MPI_Info_free(&run->hints);
    free(run->types);
    free(run->requests);
    free(run->whole);
}

/* What one process does in a pass. */
struct transfer {
    struct run *run;
    enum method method;
    bool is_write;
    const struct share *share;
    MPI_File file;
    MPI_Datatype view;
    char path[PATH_MAX];
    struct result *own;
};

/* The place of an array in the data of this process. */
static double *array_at(const struct transfer *transfer, int array) {
    return transfer->run->data + (size_t)array * (size_t)transfer->share->elements;
}

/*
 * ROMIO writes through a view by read, modify and write under a lock of the file, and keeps that lock when the
 * write fails: the others would wait for it for ever. To close any handle gives up all locks of a process.
 */
static void locks_release(const char *path) {
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file >= 0) (void)close(file);
}

/* Reads or writes `count` elements at `offset`, in etypes of the view. */
static bool move(struct transfer *transfer, MPI_Offset offset, double *data, int count) {
    MPI_Status status;
    const bool is_collective = transfer->method == COLLECTIVE;
    MPI_File file = transfer->file;
    int code = 0;
    if (transfer->is_write) {
        code = is_collective ? MPI_File_write_at_all(file, offset, data, count, MPI_DOUBLE, &status)
                             : MPI_File_write_at(file, offset, data, count, MPI_DOUBLE, &status);
    } else {
        code = is_collective ? MPI_File_read_at_all(file, offset, data, count, MPI_DOUBLE, &status)
                             : MPI_File_read_at(file, offset, data, count, MPI_DOUBLE, &status);
    }
    transfer->own->requests++;
    if (!went_well(code, transfer->method, transfer->is_write ? "write" : "read", transfer->path)) {
        locks_release(transfer->path);
        return false;
    }
    /* Collective ones may not know how much there was: the comparison does. */
    int moved = 0;
    MPI_Get_count(&status, MPI_DOUBLE, &moved);
    if (!is_collective && moved != count) {
        fail("%s: %d of %d elements at offset %lld of %s were %s", method_name(transfer->method), moved, count,
             (long long)offset, transfer->path, transfer->is_write ? "written" : "read: the file ends");
        return false;
    }
    transfer->own->bytes += (double)count * (double)sizeof(double);
    return true;
}

/* Each process through a view of its own pieces. */
static void move_view(struct transfer *transfer) {
    for (int array = 0; array < options.arrays; array++) {
        const MPI_Offset offset = (MPI_Offset)array * transfer->share->elements;
        const bool is_good = move(transfer, offset, array_at(transfer, array), transfer->share->elements);
        /* The others wait for us in a collective, whatever became of the last one. */
        if (transfer->method == COLLECTIVE) continue;
        job_exchange_stops();
        if (!is_good || job_should_stop()) return;
    }
}

static void move_pieces(struct transfer *transfer) {
    for (int array = 0; array < options.arrays; array++) {
        double *data = array_at(transfer, array);
        const MPI_Offset begin = (MPI_Offset)array * options.columns * options.rows;
        for (int i = 0; i < transfer->share->count; i++) {
            const struct piece *piece = &transfer->share->pieces[i];
            if (!move(transfer, begin + piece->offset, data, piece->length)) return;
            data += piece->length;
        }
        job_exchange_stops();
        if (job_should_stop()) return;
    }
}

static void move_own(struct transfer *transfer) {
    for (int array = 0; array < options.arrays && !job_should_stop(); array++) {
        const MPI_Offset offset = (MPI_Offset)array * transfer->share->elements;
        if (!move(transfer, offset, array_at(transfer, array), transfer->share->elements)) return;
        job_exchange_stops();
    }
}

/* The tiles of one array go to process 0, or come from there. */
static void tiles_move(struct transfer *transfer, int array) {
    struct run *run = transfer->run;
    MPI_Request own = MPI_REQUEST_NULL;
    double *data = array_at(transfer, array);
    const int count = transfer->share->elements;
    if (transfer->is_write) {
        MPI_Isend(data, count, MPI_DOUBLE, 0, TAG_TILE, MPI_COMM_WORLD, &own);
    } else {
        MPI_Irecv(data, count, MPI_DOUBLE, 0, TAG_TILE, MPI_COMM_WORLD, &own);
    }
    for (int process = 0; job.rank == 0 && process < job.count; process++) {
        MPI_Request *request = &run->requests[process];
        if (transfer->is_write) {
            MPI_Irecv(run->whole, 1, run->types[process], process, TAG_TILE, MPI_COMM_WORLD, request);
        } else {
            /* With -s process P gets the tiles of process P+1. */
            const int to = options.shift ? (process + job.count - 1) % job.count : process;
            MPI_Isend(run->whole, 1, run->types[process], to, TAG_TILE, MPI_COMM_WORLD, request);
        }
    }
    for (int process = 0; job.rank == 0 && process < job.count; process++) {
        job_wait(&run->requests[process]);
    }
    job_wait(&own);
}

/* Process 0 alone reads or writes, whole arrays; the tiles travel. The others count no bytes. */
static void move_gather(struct transfer *transfer) {
    const int count = (int)(options.columns * options.rows);
    for (int array = 0; array < options.arrays; array++) {
        const MPI_Offset offset = (MPI_Offset)array * count;
        if (transfer->is_write) tiles_move(transfer, array);
        /* After a failure the tiles travel on: the others wait for them. */
        if (job.rank == 0 && !job_should_stop()) (void)move(transfer, offset, transfer->run->whole, count);
        if (!transfer->is_write) tiles_move(transfer, array);
    }
}

/* Opens the file, as far as this process does. */
static bool transfer_open(struct transfer *transfer) {
    const enum method method = transfer->method;
    const bool is_alone = method == OWN || method == GATHER;
    if (method == GATHER && job.rank != 0) return true;
    const int flags = transfer->is_write ? MPI_MODE_CREATE | MPI_MODE_EXCL | MPI_MODE_RDWR : MPI_MODE_RDONLY;
    const int code = MPI_File_open(is_alone ? MPI_COMM_SELF : MPI_COMM_WORLD, transfer->path, flags,
                                   transfer->run->hints, &transfer->file);
    if (code != MPI_SUCCESS) transfer->file = MPI_FILE_NULL;
    return went_well(code, method, transfer->is_write ? "make" : "open", transfer->path);
}

/* Collective where the file is. */
static void view_set(struct transfer *transfer) {
    const enum method method = transfer->method;
    if (transfer->file == MPI_FILE_NULL) return;
    MPI_Datatype pieces = MPI_DOUBLE;
    if (method == COLLECTIVE || method == INDEPENDENT) {
        /* Who has nothing needs no pieces. */
        if (transfer->share->elements > 0) pieces = transfer->view;
    }
    (void)went_well(MPI_File_set_view(transfer->file, 0, MPI_DOUBLE, pieces, "native", transfer->run->hints), method,
                    "set the view of", transfer->path);
}

static void transfer_close(struct transfer *transfer) {
    if (transfer->file == MPI_FILE_NULL) return;
    if (options.sync && transfer->is_write) {
        (void)went_well(MPI_File_sync(transfer->file), transfer->method, "sync", transfer->path);
    }
    (void)went_well(MPI_File_close(&transfer->file), transfer->method, "close", transfer->path);
}

static void transfer_move(struct transfer *transfer) {
    switch (transfer->method) {
    case COLLECTIVE:
    case INDEPENDENT: move_view(transfer); break;
    case PIECES: move_pieces(transfer); break;
    case GATHER: move_gather(transfer); break;
    case OWN: move_own(transfer); break;
    case METHOD_COUNT: break;
    }
}

/* Between the barriers. */
static bool transfer_measure(struct transfer *transfer) {
    struct result *own = transfer->own;
    const double system_begin = system_seconds();
    job_barrier();
    const double begin = now_seconds();
    (void)transfer_open(transfer);
    /* Nobody may go on alone in a collective. */
    bool is_good = job_agree();
    if (is_good) view_set(transfer);
    const double opened = now_seconds();
    is_good = is_good && job_agree();
    if (is_good) transfer_move(transfer);
    const double moved = now_seconds();
    transfer_close(transfer);
    const double closed = now_seconds();
    job_exchange_stops();
    job_barrier();
    own->open_seconds = opened - begin;
    own->io_seconds = moved - opened;
    own->close_seconds = closed - moved;
    own->seconds = closed - begin;
    own->elapsed = now_seconds() - begin;
    own->system_seconds = system_seconds() - system_begin;
    return is_good && job_agree();
}

bool method_run(struct run *run, enum method method, bool is_write, struct result *own) {
    struct transfer transfer = {
        .run = run,
        .method = method,
        .is_write = is_write,
        .share = is_write ? &run->write_share : &run->read_share,
        .file = MPI_FILE_NULL,
        .view = MPI_DATATYPE_NULL,
        .own = own,
    };
    *own = (struct result){0};
    (void)method_path(run, method, is_write ? job.rank : run->read_process, transfer.path);
    if (method == COLLECTIVE || method == INDEPENDENT) transfer.view = type_make(transfer.share);
    const bool is_mine = method == OWN || job.rank == 0;
    if (is_write && is_mine && access(transfer.path, F_OK) == 0) {
        fail("%s is there already: it is left alone", transfer.path);
    }
    bool is_good = job_agree();
    if (is_good && is_write) {
        run->exists[method] = true;
        if (is_mine && !options.keep) cleaner_expect(transfer.path, LEFT_FILE);
    }
    is_good = is_good && transfer_measure(&transfer);
    if (transfer.view != MPI_DATATYPE_NULL) MPI_Type_free(&transfer.view);
    return is_good;
}

void method_remove(struct run *run, enum method method) {
    char path[PATH_MAX];
    if (!run->exists[method]) return;
    run->exists[method] = false;
    if (method != OWN && job.rank != 0) return;
    if (!method_path(run, method, job.rank, path)) return;
    if (unlink(path) != 0 && errno != ENOENT) fail("cannot remove %s: %s", path, strerror(errno));
}
