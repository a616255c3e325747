#include <ctype.h>
#include <stddef.h>
#include <stdlib.h>

#include "pioraw.h"

enum { BLOCKS_MAX = 1 << 30, PROCESSES_MAX = 1 << 24, SECONDS_MAX = 1000000 };

const char OPTIONS_HELP_TEXT[] =
    "pioraw [-p processes] [-t seconds] [-f filesize] [-s blocksize] [-k blocks] [-o operations]\n"
    "       [-d dir] [-U] [-R dev [-R dev]...] [-I] [-e] [-F] [-C] [-K] [-N name] [--json file] [--plan]\n"
    "\n"
    "Measures how much the processes of an MPI job read and write in a given time, each sequentially in a file of\n"
    "its own: run it under mpiexec. Repeated for operations of several sizes, it shows when the system saturates.\n"
    "\n"
    "  -p, --processes list   processes that take part, such as 1,2,3,4,5: the first so many of the job (default:\n"
    "                         all of them); the document calls them PEs\n"
    "  -t, --seconds n        time of each test, such as 0.5 (default: 120)\n"
    "  -f, --filesize n       bytes of each file; K, M, G are 2^10, 2^20, 2^30 (default: 256M)\n"
    "  -s, --blocksize n      bytes of a block (default: 1K)\n"
    "  -k, --blocks list      blocks of one read or write (default: 1,4,16,64,256,1024,4096,16384)\n"
    "  -o, --operations list  of write and read (default: both, in this order)\n"
    "  -d, --directory dir    where the files are made: dir/pioraw.PROCESS (default: the current one)\n"
    "  -U, --unique           make a unique directory in it, and work there\n"
    "  -R, --device dev       work on this block or raw device instead of files; several are shared\n"
    "  -I, --direct           direct I/O (O_DIRECT); where it is refused the job ends\n"
    "  -e, --sync             an fsync at the end of each writing test, within its time\n"
    "  -F, --forget           before each test the kernel is asked to drop the file's pages (posix_fadvise)\n"
    "  -C, --check            write a pattern that tells process, offset and pass; check all that is read\n"
    "  -K, --keep             keep the files of the last number of processes\n"
    "  -N, --report name      write the report to name_YYYYMMDD_HHMMSS instead of standard output\n"
    "  --json file            write the whole result, all times included, as one JSON object\n"
    "  --plan                 do nothing, but print who would work where: number of processes, process, file,\n"
    "                         offset, bytes, blocks of one operation, bytes that operations of this size reach\n"
    "  --help                 this text\n"
    "\n"
    "Table B-3 of the document, all its numbers of processes and blocks in one job for each column:\n"
    "  mpiexec -n 5 pioraw -p 1,2,3,4,5 -t 120 -f 256M -d /mnt/gupfs/dir        (a file system)\n"
    "  mpiexec -n 5 pioraw -p 1,2,3,4,5 -t 120 -f 256M -R /dev/sdb              (a device)\n"
    "\n"
    "Each process begins after a barrier, works from the begin of its file to its end and from the begin again, and\n"
    "stops after the first operation that ends when its time is over. The rate of a test is the volume of all\n"
    "processes over the longest time of one. MB are 2^20 bytes.\n"
    "\n"
    "Where the description (gupfs-2002, Appendix A.3.4, B.2 and section 5.3) leaves a choice, this program does the\n"
    "following:\n"
    "  - The time of -t is that of each test: 16 tests of 120 seconds for each number of processes.\n"
    "  - An operation does not cross the end of the file: bytes behind the last whole operation are left out.\n"
    "  - For each number of processes the files are made anew. The first write test so allocates, the others write\n"
    "    over it. What no test has written is written before the read tests, untimed.\n"
    "  - The file is opened before the barrier; after each write test, untimed, it is synced. With -e an fsync is\n"
    "    within the time, which it may exceed.\n"
    "  - '[0] Filesize' is the size that process 0 works on. The document prints 16777216 there, one operation of\n"
    "    16384 blocks, and says 256 MB in its text.\n"
    "  - -R: process k works on device k mod n of the n devices, at offset (k / n) * filesize: no two processes have\n"
    "    the same bytes. With reads alone nothing is written. A regular file may stand in for a device.\n"
    "  - -C: the pattern is made, and what is read is compared, within the time. After each write test each process\n"
    "    reads back, untimed, what the process before it wrote. Passes are counted from 1 to 255 and again.\n"
    "\n"
    "Environment: PIORAW_TRACE=DIR writes each read and write to DIR/PROCESS.0, one line each: operation (fill and\n"
    "check are not measured), processes, blocks, file, offset, bytes. It slows the tests down.\n"
    "\n"
    "Exit status: 0; 1 if the run failed (one process says why, the files are removed unless -K is given); 2 if\n"
    "the command line makes no sense.\n";

static bool read_seconds(void *to, int letter, const char *value) {
    struct options *options = to;
    char *end = NULL;
    (void)letter;
    /* strtod takes signs, spaces, "inf" and hexadecimal numbers, too. */
    for (const char *at = value; *at != '\0'; at++) {
        if (isdigit((unsigned char)*at) || *at == '.') continue;
        fail("-t %s: not a number of seconds", value);
        return false;
    }
    options->seconds = strtod(value, &end);
    if (end != value && *end == '\0' && options->seconds > 0 && options->seconds <= SECONDS_MAX) return true;
    fail("-t %s: not a number of seconds from above 0 to %d", value, SECONDS_MAX);
    return false;
}

static bool read_device(void *to, int letter, const char *value) {
    struct options *options = to;
    (void)letter;
    if (options->device_count == DEVICES_MAX) {
        fail("more than %d devices", DEVICES_MAX);
        return false;
    }
    options->devices[options->device_count++] = value;
    return true;
}

#define AT(field) .at = offsetof(struct options, field)
#define FLAG(character, word, field) {.letter = (character), .name = (word), .kind = OPTION_FLAG, AT(field)}

const struct option_row OPTION_ROWS[] = {
    {.letter = 'p', .name = "processes", .kind = OPTION_NUMBERS, AT(processes), .least = 1, .most = PROCESSES_MAX},
    {.letter = 't', .name = "seconds", .kind = OPTION_OWN, .read = read_seconds},
    {.letter = 'f', .name = "filesize", .kind = OPTION_SIZE, AT(file_bytes), .least = 1, .what = "the file size"},
    {.letter = 's', .name = "blocksize", .kind = OPTION_SIZE, AT(block_bytes), .least = 1, .what = "the block size"},
    {.letter = 'k', .name = "blocks", .kind = OPTION_NUMBERS, AT(blocks), .least = 1, .most = BLOCKS_MAX},
    {.letter = 'o', .name = "operations", .kind = OPTION_WORDS, AT(operations), .what = "write,read"},
    {.letter = 'd', .name = "directory", .kind = OPTION_TEXT, AT(directory)},
    FLAG('U', "unique", unique),
    {.letter = 'R', .name = "device", .kind = OPTION_OWN, .read = read_device},
    FLAG('I', "direct", direct),
    FLAG('e', "sync", sync),
    FLAG('F', "forget", drop),
    FLAG('C', "check", check),
    FLAG('K', "keep", keep),
    {.letter = 'N', .name = "report", .kind = OPTION_TEXT, AT(report_base)},
    {.letter = OPTION_LONG, .name = "json", .kind = OPTION_TEXT, AT(json)},
    FLAG(OPTION_LONG + 1, "plan", plan),
    {0},
};

struct options pioraw_options = {
    .blocks = {.count = 8, .values = {1, 4, 16, 64, 256, 1024, 4096, 16384}},
    .operations = {true, true},
    .block_bytes = 1024,
    .file_bytes = 256 << 20,
    .seconds = 120,
    .directory = ".",
};

static void check_lists(struct options *options) {
    if (options->processes.count == 0) options->processes = (struct numbers){.count = 1, .values = {job.count}};
    for (int i = 0; i < options->processes.count; i++) {
        const long long processes = (long long)options->processes.values[i];
        if (processes > job.count) fail("-p: %lld processes, and the job has %d", processes, job.count);
    }
    for (int i = 0; i < options->blocks.count; i++) {
        const int64_t blocks = options->blocks.values[i];
        if (blocks <= options->file_bytes / options->block_bytes) continue;
        fail("-k: %lld blocks of %lld bytes are more than the file size, %lld bytes", (long long)blocks,
             (long long)options->block_bytes, (long long)options->file_bytes);
    }
}

void options_check(void) {
    struct options *options = &pioraw_options;
    int64_t bytes = 0;
    check_lists(options);
    if (__builtin_mul_overflow(options->file_bytes, job.count, &bytes)) {
        fail("-f: the file size is too large");
    } else if (options->file_bytes % options->block_bytes != 0) {
        fail("-f: the file size must be a multiple of the block size");
    } else if (options->direct && options->block_bytes % 512 != 0) {
        fail("-I: the block size must be a multiple of 512");
    } else if (options->check && options->block_bytes % PATTERN_UNIT != 0) {
        fail("-C: the block size must be a multiple of %d", PATTERN_UNIT);
    } else if (options->device_count > 0 && options->unique) {
        fail("-R and -U contradict each other: nothing is made");
    } else if (options->device_count > 0 && options->check && !options->operations[OP_WRITE]) {
        fail("-R with -C needs the operation write: nothing else writes the pattern on a device");
    }
}
