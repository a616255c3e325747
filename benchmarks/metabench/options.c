#define _GNU_SOURCE
#include <stddef.h>
#include <stdlib.h>

#include "metabench.h"

enum { FILES_MAX = 1000000000, BATCHES_MAX = 1000000 };

const char OPTIONS_HELP_TEXT[] =
    "metabench [-CSUATk0] [-c nfile] [-b nbyte] [-o name] [-w dir] [-f freq]\n"
    "          [--tar file] [--local dir] [--json file]\n"
    "\n"
    "Measures metadata operations of MPI processes: run it under mpiexec.\n"
    "\n"
    "  -C          file creation: Create-A (the highest process alone, batch for batch),\n"
    "              Create-B (separate directories), Create-C (one directory)\n"
    "  -S          stat: Stat-A (separate directories), Stat-B (one directory)\n"
    "  -U          utime: Utime-A, Utime-B\n"
    "  -A          append: Append-A, Append-B\n"
    "  -T          untar: each process unpacks an archive in its own directory\n"
    "  -c nfile    files of each test (default: 20000)\n"
    "  -b nbyte    bytes that are appended to each file; K, M, G are 2^10, 2^20, 2^30 (default: 16K)\n"
    "  -f freq     files of a batch of Create-A (default: 1000)\n"
    "  -o name     write the report to name_YYYYMMDD_HHMMSS instead of standard output\n"
    "  -w dir      working directory (default: the current one)\n"
    "  -k          after each test, process 0 removes what it made\n"
    "  -0          process 0 takes part in the tests\n"
    "  --tar file  the archive of the untar test, the same on each node, in a local directory\n"
    "  --local dir where to make the archive if none is given (default: TMPDIR, or /tmp)\n"
    "  --json file write the whole result, all times included, as one JSON object\n"
    "  --help      this text\n"
    "\n"
    "Process 0 only prepares the tests, unless it is alone or -0 is given: what it made may be in its cache. N\n"
    "processes take part, and each works on nfile/N files. Tests make these directories in the working directory,\n"
    "which must not exist yet: create_a, create_b.K, create_c, stat_a.K, stat_b, utime_a.K, utime_b, append_a.K,\n"
    "append_b, untar.K, with K from 0 to N-1.\n"
    "\n"
    "Report: the rate of a process is its files over its own time; the rate of a test is all files over the time\n"
    "from the barrier that starts all processes to the one that all have reached (the longest that one saw).\n"
    "\n"
    "Where the description (gupfs-2002, Appendix A.2) leaves a choice, this program does the following:\n"
    "  - The defaults of -c, -f and -b are those of the document's measurements (section 5.4).\n"
    "  - nfile/N is a whole number, the rest is left out; there must be as many files as processes.\n"
    "  - To create is open (O_CREAT, O_EXCL) and close; to append is open (O_APPEND), write and close. No fsync.\n"
    "  - In separate directories files are named; in one directory each process reads the names from the open\n"
    "    directory, from where it has walked to, within its time.\n"
    "  - The archive is unpacked by the program tar. Without --tar, the first process of each node makes one of\n"
    "    9188 files in 459 directories with 75.8 MB (of 2^20 bytes) and removes it at the end; the rate counts\n"
    "    the files, not the directories.\n"
    "  - The clean-up has its own times in the report. Without -k the report says what is left.\n"
    "  - A run that fails removes everything that it made.\n"
    "\n"
    "Exit status: 0; 1 if the run failed (one process says why); 2 if the command line makes no sense.\n";

#define AT(field) .at = offsetof(struct options, field)

const struct option_row OPTION_ROWS[] = {
    {.letter = 'C', .kind = OPTION_FLAG, AT(create)},
    {.letter = 'S', .kind = OPTION_FLAG, AT(stat)},
    {.letter = 'U', .kind = OPTION_FLAG, AT(utime)},
    {.letter = 'A', .kind = OPTION_FLAG, AT(append)},
    {.letter = 'T', .kind = OPTION_FLAG, AT(untar)},
    {.letter = 'k', .kind = OPTION_FLAG, AT(cleanup)},
    {.letter = '0', .kind = OPTION_FLAG, AT(zero)},
    {.letter = 'c', .kind = OPTION_NUMBER, AT(files), .least = 1, .most = FILES_MAX},
    {.letter = 'f', .kind = OPTION_NUMBER, AT(batch), .least = 1, .most = FILES_MAX},
    {.letter = 'b', .kind = OPTION_SIZE, AT(append_bytes), .least = 1, .what = "the size"},
    {.letter = 'o', .kind = OPTION_TEXT, AT(report_base)},
    {.letter = 'w', .kind = OPTION_TEXT, AT(directory)},
    {.letter = OPTION_LONG, .name = "tar", .kind = OPTION_TEXT, AT(archive)},
    {.letter = OPTION_LONG + 1, .name = "local", .kind = OPTION_TEXT, AT(local)},
    {.letter = OPTION_LONG + 2, .name = "json", .kind = OPTION_TEXT, AT(json)},
    {0},
};

struct options metabench_options = {
    .files = 20000,
    .append_bytes = 16384,
    .batch = 1000,
    .directory = ".",
};

void options_check(void) {
    struct options *options = &metabench_options;
    const char *temporary = getenv("TMPDIR");
    if (options->local == NULL) options->local = temporary != NULL && *temporary != '\0' ? temporary : "/tmp";
    if (!options->create && !options->stat && !options->utime && !options->append && !options->untar) {
        fail("no test is asked for: -C, -S, -U, -A or -T");
    } else if (options->files / options->batch >= BATCHES_MAX) {
        fail("-f %lld: more than %d batches", (long long)options->batch, BATCHES_MAX);
    } else if (options->archive != NULL && !options->untar) {
        fail("--tar is for the untar test, -T");
    }
}

bool test_is_wanted(const struct options *options, enum test test) {
    switch (test) {
    case CREATE_A:
    case CREATE_B:
    case CREATE_C: return options->create;
    case STAT_A:
    case STAT_B: return options->stat;
    case UTIME_A:
    case UTIME_B: return options->utime;
    case APPEND_A:
    case APPEND_B: return options->append;
    case UNTAR: return options->untar;
    case TEST_COUNT: break;
    }
    return false;
}
