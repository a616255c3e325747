#include <stddef.h>

#include "mdmark.h"

enum { ENTRIES_MAX = 100000000, SECONDS_MAX = 86400, SUBPROCESSES_MAX = 1024 };

const char HELP[] =
    "mdmark [-w dir] [-p file] [-s seed] [-e entries] [-b bytes] [-f bytes] [-l levels] [-z] [-E]\n"
    "       [-S] [-U] [-H] [-M seconds [-n processes]] [-D] [-K] [-o name] [--json file]\n"
    "mdmark --measure tree --out file [-o name] [--json file]\n"
    "mdmark --plan | --builtin\n"
    "\n"
    "Measures metadata operations on a tree that is made by chance from distributions of real ones: run it under\n"
    "mpiexec, or alone.\n"
    "\n"
    "  -w dir      working directory (default: the current one); the tree is dir/mdmark.tree\n"
    "  -p file     distributions, as --measure writes them (default: built-in ones, see --builtin)\n"
    "  -s seed     seed: one seed makes one tree, whatever the number of processes (default: 1)\n"
    "  -e entries  most files and directories, the root not counted (default: 20000)\n"
    "  -b bytes    most bytes of all files together (default: 1G)\n"
    "  -f bytes    most bytes of a file: larger ones get this size (default: 1G)\n"
    "  -l levels   most levels; the root is the first one (default: 64, the most)\n"
    "  -z          files get their size, but no data\n"
    "  -E          do not make the tree: work on the one that the same options left there with -K\n"
    "  -S          scan: walk through the tree and stat each entry\n"
    "  -U          scan and update: also set the access and modification time of each entry\n"
    "  -H          statistics: count entries and subdirectories, histograms of all levels and of each\n"
    "  -M seconds  mix of operations by chance, by subprocesses, for so long\n"
    "  -n count    subprocesses of each process in the mix (default: 1)\n"
    "  -D          scan and delete: stat, and delete the files of a directory, then its subdirectories\n"
    "  -K          keep the tree (default: it is removed at the end)\n"
    "  -o name     write the report to name_YYYYMMDD_HHMMSS instead of standard output\n"
    "  --json file the whole result as one JSON object, with the raw times of all processes\n"
    "  --measure tree   measure the distributions of a tree; nothing is changed in it\n"
    "  --out file  where to: a new file, for -p\n"
    "  --plan      print the tree (d level files path; f size path), and make nothing\n"
    "  --builtin   print the built-in distributions\n"
    "  --help      this text\n"
    "\n"
    "bytes end in K, M or G (2^10, 2^20, 2^30) or in none of them. Tests run in this order: Make, Scan, Update,\n"
    "Statistics, Mix, Delete.\n"
    "\n"
    "Examples:\n"
    "  mdmark --measure /home --out home.dist              distributions of a real tree\n"
    "  mpiexec -n 4 mdmark -p home.dist -e 100000 -SUHD    the document's scans, 4 processes\n"
    "  mpiexec -n 2 mdmark -M 60 -n 8                      the mix: 16 subprocesses, one minute\n"
    "\n"
    "Report: the rate of a test is its operations over the time from the barrier that starts all processes to the\n"
    "one that all have reached (the longest that one saw); the time of a process is that of its own work.\n"
    "Operations are: Make, the creations of files and directories; Scan, stat; Update, stat and utimensat;\n"
    "Statistics, stat; Delete, stat, unlink and rmdir; Mix, all its calls, over the time of the slowest\n"
    "subprocess. Calls that open, read and close files and directories on the way are in the time, but no\n"
    "operations (a directory that the mix reads is one).\n"
    "\n"
    "Where the description (gupfs-2002, Appendix A.3.5) leaves a choice, this program does the following:\n"
    "  - There are distributions of the number of files and of subdirectories for each level, and one of file\n"
    "    sizes. A row stands for the values FIRST to LAST, all equally likely, with weight COUNT. Levels below\n"
    "    the last one of the file have that one's distributions. What is no directory is measured as a file.\n"
    "    Directories that may not be read, and other file systems, are not measured; the report counts the first.\n"
    "  - The tree is drawn depth first: if -e or -b end it, its first directories are whole and the last ones\n"
    "    are missing. Each directory has its own random numbers.\n"
    "  - Process k makes each N-th directory of a level with its files, then all wait for one another.\n"
    "    Files are written (data without pattern) unless -z is given. No fsync.\n"
    "  - Scans walk through what is there, level for level: each process reads each N-th directory of a level,\n"
    "    and they exchange what they found, within the time. With one process this is a plain breadth first walk.\n"
    "    Files, directories and bytes that a scan finds must be those of the tree, or the run fails.\n"
    "  - Delete removes the files on the way down and the directories on the way up.\n"
    "  - Mix: in a thousand calls 500 stat, 160 utimensat, 80 create, 80 unlink, 20 mkdir, 20 rmdir, 70 down, 70 up,\n"
    "    and a readdir of the whole directory after each chdir. Stat and utimensat are on any entry of the current\n"
    "    directory; only what the subprocess made itself is removed, so that the tree keeps its shape; at most\n"
    "    1024 files and directories of a subprocess are there at a time. What is left is removed after the time,\n"
    "    uncounted. Calls are refused when another subprocess has removed the entry meanwhile.\n"
    "  - The profiles of NERSC's file systems are not published. The built-in distributions are those of the\n"
    "    /usr/share of a Debian 12 installation.\n"
    "\n"
    "Exit status: 0; 1 if the run failed (one process says why; a tree that it made is removed unless -K is\n"
    "given); 2 if the command line makes no sense.\n";

#define AT(field) .at = offsetof(struct options, field)

const struct option_row OPTION_ROWS[] = {
    {.letter = 'w', .kind = OPTION_TEXT, AT(directory)},
    {.letter = 'p', .kind = OPTION_TEXT, AT(distributions)},
    {.letter = 's', .kind = OPTION_NUMBER, AT(seed), .least = 0, .most = INT64_MAX - 16},
    {.letter = 'e', .kind = OPTION_NUMBER, AT(entries), .least = 1, .most = ENTRIES_MAX},
    {.letter = 'b', .kind = OPTION_SIZE, AT(bytes), .what = "the size"},
    {.letter = 'f', .kind = OPTION_SIZE, AT(file_bytes), .what = "the size"},
    {.letter = 'l', .kind = OPTION_NUMBER, AT(levels), .least = 1, .most = DEPTH_MAX},
    {.letter = 'z', .kind = OPTION_FLAG, AT(hollow)},
    {.letter = 'E', .kind = OPTION_FLAG, AT(existing)},
    {.letter = 'S', .kind = OPTION_FLAG, AT(scan)},
    {.letter = 'U', .kind = OPTION_FLAG, AT(update)},
    {.letter = 'H', .kind = OPTION_FLAG, AT(statistics)},
    {.letter = 'M', .kind = OPTION_NUMBER, AT(mix_seconds), .least = 1, .most = SECONDS_MAX},
    {.letter = 'n', .kind = OPTION_NUMBER, AT(mix_processes), .least = 1, .most = SUBPROCESSES_MAX},
    {.letter = 'D', .kind = OPTION_FLAG, AT(delete)},
    {.letter = 'K', .kind = OPTION_FLAG, AT(keep)},
    {.letter = 'o', .kind = OPTION_TEXT, AT(report_base)},
    {.letter = OPTION_LONG, .name = "json", .kind = OPTION_TEXT, AT(json)},
    {.letter = OPTION_LONG + 1, .name = "measure", .kind = OPTION_TEXT, AT(measure)},
    {.letter = OPTION_LONG + 2, .name = "out", .kind = OPTION_TEXT, AT(output)},
    {.letter = OPTION_LONG + 3, .name = "plan", .kind = OPTION_FLAG, AT(plan)},
    {.letter = OPTION_LONG + 4, .name = "builtin", .kind = OPTION_FLAG, AT(builtin)},
    {0},
};

struct options options = {
    .directory = ".",
    .seed = 1,
    .entries = 20000,
    .bytes = INT64_C(1) << 30,
    .file_bytes = INT64_C(1) << 30,
    .levels = DEPTH_MAX,
    .mix_processes = 1,
};

void options_check(void) {
    const bool is_test =
        options.scan || options.update || options.statistics || options.delete || options.mix_seconds > 0;
    if (options.measure != NULL && (is_test || options.existing || options.plan)) {
        fail("--measure only measures: no test, no -E and no --plan with it");
    } else if ((options.measure == NULL) != (options.output == NULL)) {
        fail("--measure and --out go together: the tree, and the file for its distributions");
    } else if (options.existing && !is_test) {
        fail("-E makes no tree, and no test is asked for: -S, -U, -H, -M or -D");
    } else if (options.delete && options.keep) {
        fail("-D and -K contradict each other");
    } else if (options.mix_processes > 1 && options.mix_seconds == 0) {
        fail("-n is for the mix, -M");
    }
}
