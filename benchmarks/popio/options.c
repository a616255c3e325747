#include <mpi.h>
#include <stddef.h>
#include <string.h>

#include "popio.h"

enum { SIDE_MAX = 1000000, ARRAYS_MAX = 100000 };

const char HELP[] =
    "popio [-d dir] [-x columns] [-y rows] [-a arrays] [-g PxQ] [-t WxH] [-m method[,method]...] [-i n]\n"
    "      [-w|-r] [-s] [-S] [-K] [--hint key=value]... [-o name] [--json file]\n"
    "\n"
    "Measures how fast the 2D double precision arrays of a high resolution ocean model are written and read back by\n"
    "MPI-IO: run it under mpiexec. All that is read is compared with what was written, outside of the time.\n"
    "\n"
    "  -d dir      directory of the files (default: the current one)\n"
    "  -x columns  columns of an array: adjacent elements of a file (default: 3600)\n"
    "  -y rows     rows of an array (default: 2400)\n"
    "  -a arrays   arrays, one after another in the file (default: 4)\n"
    "  -g PxQ      grid of processes: P beside, Q above one another (default: MPI_Dims_create, the larger one\n"
    "              along the longer side)\n"
    "  -t WxH      tile: W columns, H rows; tiles are dealt to the grid cyclically in both directions (default: one\n"
    "              tile for each process)\n"
    "  -m methods  which methods, in this order, with commas between (default: all):\n"
    "              collective   one file; a view of the own tiles, MPI_File_write_at_all, one call for each array\n"
    "              independent  the same with MPI_File_write_at: each process for itself\n"
    "              pieces       one file; MPI_File_write_at for each row of each tile, no view\n"
    "              gather       one file, one writer: process 0 collects the tiles and writes whole arrays\n"
    "              own          a file for each process with its tiles one after another\n"
    "  -i n        repeat each method so often, with new files (default: 1)\n"
    "  -w          only write; implies -K\n"
    "  -r          only read what -w with the same options left there; nothing is removed\n"
    "  -s          read shifted: process P reads the tiles that process P+1 wrote, which are not in its cache\n"
    "  -S          MPI_File_sync before the file is closed, within the time\n"
    "  -K          keep the files: dir/popio.METHOD, dir/popio.own.PROCESS (default: removed)\n"
    "  --hint k=v  hint for MPI_File_open, several times, such as cb_nodes=2 or romio_ds_write=disable\n"
    "  -o name     write the report to name_YYYYMMDD_HHMMSS instead of standard output\n"
    "  --json file the whole result as one JSON object, with the raw times of all processes\n"
    "  --help      this text\n"
    "\n"
    "Examples:\n"
    "  mpiexec -n 16 popio -d /mnt/gupfs/dir                       all methods, one tile for each process\n"
    "  mpiexec -n 16 popio -d /mnt/gupfs/dir -m independent -t 144x120    the document's tiles\n"
    "  mpiexec -n 16 popio -d /mnt/gupfs/dir -m collective,gather -s -i 5 --hint cb_nodes=4\n"
    "\n"
    "Report: Rate is all bytes over E-Time, from the barrier that starts all processes to the one that all have\n"
    "reached (the longest that one saw). Open, I/O and Close are the longest of a process. %DtVar is the difference\n"
    "of the longest and the shortest time of a process in percent of E-Time. MB are 2^20 bytes.\n"
    "\n"
    "Where the description (ncar-2008, section 4.3) leaves a choice, this program does the following:\n"
    "  - It compares file systems, and says of the method only that each processor uses MPI-IO to write its tile to\n"
    "    the correct location, with small and interleaved requests in one shared file: that is `independent`\n"
    "    with a view and `pieces` without one. The other methods are what applications do instead.\n"
    "  - The number of arrays is not given: 4, which are 264 MB. Each process keeps all its tiles in memory.\n"
    "  - Rows are along the 3600 columns, as Fortran stores an array (3600,2400). 500 processes get tiles of 144x120,\n"
    "    as in the document. If the grid does not divide an array, tiles at its end are smaller, and a\n"
    "    process may have none.\n"
    "  - Times contain the open and the close. Files are new in each pass that writes. No sync without -S, and\n"
    "    nothing empties caches between writing and reading (but see -s).\n"
    "  - Element (column x, row y) of array a in iteration i, all from 0, is 1 + ((i * arrays + a) * rows + y) *\n"
    "    columns + x: stale, torn and misplaced data differ from it.\n"
    "  - gather: the time contains the travel of the tiles; bytes count where the file is written or read.\n"
    "\n"
    "Exit status: 0; 1 if the run failed or an element is wrong (one process says why; files that it made are\n"
    "removed unless -K or -w is given); 2 if the command line makes no sense.\n";

static bool read_pair(void *to, int letter, const char *value) {
    struct options *own = to;
    struct pair *pair = letter == 't' ? &own->tile : &own->grid;
    char text[64];
    const size_t length = strlen(value);
    if (length < sizeof text) {
        memcpy(text, value, length + 1);
        char *cross = strchr(text, 'x');
        if (cross != NULL) {
            *cross = '\0';
            if (parse_number(text, 1, SIDE_MAX, &pair->x) && parse_number(cross + 1, 1, SIDE_MAX, &pair->y)) return true;
        }
    }
    fail("-%c %s: two numbers from 1 to %d with an x between are expected", letter, value, SIDE_MAX);
    return false;
}

static bool read_methods(void *to, int letter, const char *value) {
    struct options *own = to;
    (void)letter;
    own->methods_given = true;
    for (;;) {
        const size_t length = strcspn(value, ",");
        int method = 0;
        while (method < METHOD_COUNT && (strlen(method_word((enum method)method)) != length ||
                                         strncmp(method_word((enum method)method), value, length) != 0)) {
            method++;
        }
        if (method == METHOD_COUNT) {
            fail("-m %.*s: the methods are collective, independent, pieces, gather and own", (int)length, value);
            return false;
        }
        own->methods[method] = true;
        if (value[length] == '\0') return true;
        value += length + 1;
    }
}

static bool read_hint(void *to, int letter, const char *value) {
    struct options *own = to;
    (void)letter;
    const size_t key = strcspn(value, "=");
    const bool is_pair = key > 0 && value[key] == '=' && value[key + 1] != '\0';
    if (!is_pair || key > MPI_MAX_INFO_KEY || strlen(value + key + 1) > MPI_MAX_INFO_VAL) {
        fail("--hint %s: a hint is key=value", value);
    } else if (own->hint_count == HINTS_MAX) {
        fail("more than %d hints", HINTS_MAX);
    } else {
        own->hints[own->hint_count++] = value;
        return true;
    }
    return false;
}

#define AT(field) .at = offsetof(struct options, field)

const struct option_row OPTION_ROWS[] = {
    {.letter = 'd', .name = "directory", .kind = OPTION_TEXT, AT(directory)},
    {.letter = 'x', .name = "columns", .kind = OPTION_NUMBER, AT(columns), .least = 1, .most = SIDE_MAX},
    {.letter = 'y', .name = "rows", .kind = OPTION_NUMBER, AT(rows), .least = 1, .most = SIDE_MAX},
    {.letter = 'a', .name = "arrays", .kind = OPTION_NUMBER, AT(arrays), .least = 1, .most = ARRAYS_MAX},
    {.letter = 'g', .name = "grid", .kind = OPTION_OWN, .read = read_pair},
    {.letter = 't', .name = "tile", .kind = OPTION_OWN, .read = read_pair},
    {.letter = 'm', .name = "methods", .kind = OPTION_OWN, .read = read_methods},
    {.letter = 'i', .name = "iterations", .kind = OPTION_NUMBER, AT(iterations), .least = 1, .most = ITERATIONS_MAX},
    {.letter = 'w', .name = "write", .kind = OPTION_FLAG, AT(only_write)},
    {.letter = 'r', .name = "read", .kind = OPTION_FLAG, AT(only_read)},
    {.letter = 's', .name = "shift", .kind = OPTION_FLAG, AT(shift)},
    {.letter = 'S', .name = "sync", .kind = OPTION_FLAG, AT(sync)},
    {.letter = 'K', .name = "keep", .kind = OPTION_FLAG, AT(keep)},
    {.letter = OPTION_LONG, .name = "hint", .kind = OPTION_OWN, .read = read_hint},
    {.letter = 'o', .name = "report", .kind = OPTION_TEXT, AT(report_base)},
    {.letter = OPTION_LONG + 1, .name = "json", .kind = OPTION_TEXT, AT(json)},
    {0},
};

struct options options = {
    .directory = ".",
    .columns = 3600,
    .rows = 2400,
    .arrays = 4,
    .iterations = 1,
};

void options_check(void) {
    for (int method = 0; method < METHOD_COUNT && !options.methods_given; method++) {
        options.methods[method] = true;
    }
    if (options.columns * options.rows > INT_MAX) {
        fail("an array of %lld x %lld has more than %d elements", (long long)options.columns, (long long)options.rows,
             INT_MAX);
    } else if (options.only_write && options.only_read) {
        fail("-w and -r contradict each other");
    } else if (options.only_write && options.iterations > 1) {
        fail("-w and -i contradict each other: what -r reads was written once");
    } else if (options.only_write && options.shift) {
        fail("-s is for reading, and -w only writes");
    }
    options.keep = options.keep || options.only_write;
}
