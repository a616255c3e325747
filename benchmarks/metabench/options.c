#define _GNU_SOURCE
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "metabench.h"

enum { FILES_MAX = 1000000000, BATCHES_MAX = 1000000 };

static const char HELP[] =
    "metabench [-CSUATk0] [-c nfile] [-b nbyte] [-o name] [-w dir] [-f freq]\n"
    "          [--tar file] [--local dir]\n"
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

void options_help(FILE *to) {
    (void)fputs(HELP, to);
}

static bool read_number(int letter, int64_t most, int64_t *number) {
    if (parse_number(optarg, 1, most, number)) return true;
    fail("-%c %s: not a number from 1 to %lld", letter, optarg, (long long)most);
    return false;
}

static bool read_option(struct options *options, int letter) {
    switch (letter) {
    case 'C': options->create = true; return true;
    case 'S': options->stat = true; return true;
    case 'U': options->utime = true; return true;
    case 'A': options->append = true; return true;
    case 'T': options->untar = true; return true;
    case 'k': options->cleanup = true; return true;
    case '0': options->zero = true; return true;
    case 'c': return read_number(letter, FILES_MAX, &options->files);
    case 'f': return read_number(letter, FILES_MAX, &options->batch);
    case 'b':
        if (parse_size(optarg, &options->append_bytes) && options->append_bytes > 0) return true;
        fail("-b %s: the size is bytes, or a number with K, M or G, and not 0", optarg);
        return false;
    case 'o': options->report_base = optarg; return true;
    case 'w': options->directory = optarg; return true;
    case 't': options->archive = optarg; return true;
    case 'l': options->local = optarg; return true;
    case 'h': options->help = true; return true;
    case ':':
        fail(optopt == 't' || optopt == 'l' ? "--tar and --local need a value (see --help)"
                                            : "-%c needs a value (see --help)",
             optopt);
        return false;
    default:
        if (optopt != 0) {
            fail("unknown option -%c (see --help)", optopt);
        } else {
            fail("unknown option (see --help)");
        }
        return false;
    }
}

static bool agree(const struct options *options) {
    if (!options->create && !options->stat && !options->utime && !options->append && !options->untar) {
        fail("no test is asked for: -C, -S, -U, -A or -T");
    } else if (options->files / options->batch >= BATCHES_MAX) {
        fail("-f %lld: more than %d batches", (long long)options->batch, BATCHES_MAX);
    } else if (options->archive != NULL && !options->untar) {
        fail("--tar is for the untar test, -T");
    } else {
        return true;
    }
    return false;
}

bool options_read(struct options *options, int argc, char **argv) {
    static const struct option names[] = {{"help", no_argument, NULL, 'h'},
                                          {"tar", required_argument, NULL, 't'},
                                          {"local", required_argument, NULL, 'l'},
                                          {0}};
    int letter = 0;
    const char *temporary = getenv("TMPDIR");
    *options = (struct options){
        .files = 20000,
        .append_bytes = 16384,
        .batch = 1000,
        .directory = ".",
        .local = temporary != NULL && *temporary != '\0' ? temporary : "/tmp",
    };
    opterr = 0;
    while ((letter = getopt_long(argc, argv, ":CSUATk0c:b:o:w:f:", names, NULL)) != -1) {
        if (!read_option(options, letter)) return false;
        if (options->help) return true;
    }
    if (optind != argc) {
        fail("%s: not an option (see --help)", argv[optind]);
        return false;
    }
    return agree(options);
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
