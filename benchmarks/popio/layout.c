#include <stdlib.h>

#include "popio.h"

static int64_t divide_up(int64_t number, int64_t by) {
    return (number + by - 1) / by;
}

void layout_make(struct layout *layout) {
    layout->grid = options.grid;
    if (layout->grid.x == 0) {
        /* The larger factor for the longer side, as 25 x 20 for the document's 500 processes. */
        int sides[2] = {0, 0};
        MPI_Dims_create(job.count, 2, sides);
        const bool is_wide = options.columns >= options.rows;
        layout->grid = (struct pair){.x = sides[is_wide ? 0 : 1], .y = sides[is_wide ? 1 : 0]};
    } else if (layout->grid.x * layout->grid.y != job.count) {
        fail("-g %lldx%lld: the job has %d processes", (long long)layout->grid.x, (long long)layout->grid.y, job.count);
        return;
    }
    layout->tile = options.tile;
    if (layout->tile.x == 0) {
        layout->tile.x = divide_up(options.columns, layout->grid.x);
        layout->tile.y = divide_up(options.rows, layout->grid.y);
    }
}

static bool add(struct share *share, int64_t offset, int64_t length) {
    struct piece *last = share->count > 0 ? &share->pieces[share->count - 1] : NULL;
    share->elements += (int)length;
    if (last != NULL && last->offset + last->length == offset) {
        last->length += (int)length;
        return true;
    }
    /* The room doubles whenever the count is a power of two. */
    if ((share->count & (share->count - 1)) == 0) {
        const size_t room = share->count == 0 ? 1 : 2 * (size_t)share->count;
        struct piece *pieces = realloc(share->pieces, room * sizeof *pieces);
        if (pieces == NULL) {
            fail("no memory for %zu pieces of an array", room);
            return false;
        }
        share->pieces = pieces;
    }
    share->pieces[share->count++] = (struct piece){.offset = (int)offset, .length = (int)length};
    return true;
}

void share_make(struct share *share, const struct layout *layout, int process) {
    const int64_t first_x = process % layout->grid.x * layout->tile.x;
    const int64_t own_y = process / layout->grid.x;
    *share = (struct share){0};
    for (int64_t y = 0; y < options.rows; y++) {
        if (y / layout->tile.y % layout->grid.y != own_y) continue;
        for (int64_t x = first_x; x < options.columns; x += layout->grid.x * layout->tile.x) {
            const int64_t rest = options.columns - x;
            const int64_t length = rest < layout->tile.x ? rest : layout->tile.x;
            if (!add(share, y * options.columns + x, length)) return;
        }
    }
}

void share_free(struct share *share) {
    free(share->pieces);
    *share = (struct share){0};
}

double element_value(int iteration, int array, int offset) {
    const double before = (double)iteration * (double)options.arrays + array;
    return 1 + before * (double)(options.columns * options.rows) + offset;
}

void share_fill(const struct share *share, double *data, int iteration) {
    for (int array = 0; array < options.arrays; array++) {
        for (int i = 0; i < share->count; i++) {
            for (int k = 0; k < share->pieces[i].length; k++) {
                *data++ = element_value(iteration, array, share->pieces[i].offset + k);
            }
        }
    }
}

/* Where an element is in the file of a method. */
static int64_t place_of(const struct share *share, enum method method, int array, int offset, int64_t index) {
    const int64_t in_shared = (int64_t)array * options.columns * options.rows + offset;
    const int64_t in_own = (int64_t)array * share->elements + index;
    return (int64_t)sizeof(double) * (method == OWN ? in_own : in_shared);
}

void share_compare(const struct share *share, const double *data, int iteration, enum method method, int process,
                   const char *path) {
    int64_t wrong = 0;
    char first[PATH_MAX + 256] = "";
    for (int array = 0; array < options.arrays; array++) {
        int64_t index = 0;
        for (int i = 0; i < share->count; i++) {
            for (int k = 0; k < share->pieces[i].length; k++, index++, data++) {
                const int offset = share->pieces[i].offset + k;
                const double value = element_value(iteration, array, offset);
                /* Also true for what is no number. */
                if (*data == value || wrong++ > 0) continue;
                (void)snprintf(first, sizeof first,
                               "array %d, row %lld, column %lld (byte %lld of %s) is %.17g and not %.17g", array,
                               (long long)(offset / options.columns), (long long)(offset % options.columns),
                               (long long)place_of(share, method, array, offset, index), path, *data, value);
            }
        }
    }
    if (wrong > 0) {
        fail("%s: %s; %lld elements of the tiles of process %d are wrong", method_name(method), first,
             (long long)wrong, process);
    }
}
