#include <stddef.h>
#include <string.h>

#include "gpfsio.h"

enum { RECORDS_MAX = 1000000000, NODES_MAX = 1 << 24 };

const char OPTIONS_HELP_TEXT[] =
    "gpfsio [-n nodes] [-t threads] [-o operations] [-c records] [-b recsz] [-i runs] [--trim]\n"
    "       [-d dir] [-U] [-S|-T] [-r] [-I] [-e] [-F] [-C] [-K] [-N name] [--json file]\n"
    "       [--server what[@process]]... [--plan]\n"
    "\n"
    "Measures sequential reads and writes of many threads of many nodes on one shared file, as the GPFS 1.4 study\n"
    "did: run it under mpiexec, one process for each node. All cells of a table are measured in one job.\n"
    "\n"
    "  -n, --nodes list       nodes that take part, such as 1,2,4,8: the first so many processes of the job\n"
    "                         (default: all of them)\n"
    "  -t, --threads list     threads of each node, such as 1,2,4,8,16 (default: 1)\n"
    "  -o, --operations list  of write, rewrite and read (default: write,read); they run in this order\n"
    "  -c, --records n        records of each thread (default: 2000)\n"
    "  -b, --record-size n    bytes of each read and write; K, M, G are 2^10, 2^20, 2^30 (default: 256K)\n"
    "  -i, --runs n           runs of each test; the tables hold the means (default: 6)\n"
    "  --trim                 the highest and the lowest rate of the runs do not count\n"
    "  -d, --directory dir    where the file is made: dir/gpfsio.data (default: the current one)\n"
    "  -U, --unique           make a unique directory in it, and work there\n"
    "  -S, --strided          records of the threads take turns in the file, instead of a segment for each thread\n"
    "  -T, --separate         a file for each thread, dir/gpfsio.PROCESS.THREAD, instead of one for all\n"
    "  -r, --rotate           a node reads what the node before it wrote\n"
    "  -I, --direct           direct I/O (O_DIRECT); where it is refused the job ends\n"
    "  -e, --sync             an fsync at the end of each writing thread, within its time\n"
    "  -F, --forget           before each test the kernel is asked to drop the file's pages (posix_fadvise)\n"
    "  -C, --check            write a pattern that tells process, thread, offset and pass; check all that is read\n"
    "  -K, --keep             keep the files of the last cell\n"
    "  -N, --report name      write the report to name_YYYYMMDD_HHMMSS instead of standard output\n"
    "  --json file            write the whole result, all times included, as one JSON object\n"
    "  --server what[@p]      count the processor time of a server: `what` is its pid or a file that holds it, seen\n"
    "                         from process p of this job (default: 0); `@p` alone counts only the node of process p.\n"
    "                         May be given several times. A process on a server that is not among -n only looks.\n"
    "  --plan                 do nothing, but print who would work where: operation, nodes, threads, process, thread,\n"
    "                         file, offset, bytes from one record to the next, recsz, records\n"
    "  --help                 this text\n"
    "\n"
    "Tables of the document:\n"
    "  Tables 1, 2, 4, 5 (Appendix B):  mpiexec -n 32 gpfsio -n 1,2,4,8,16,32 -t 1,2,4,8,16 -i 6 -d /mnt/gupfs/dir\n"
    "  Tables 7, 8 (Appendix C):        mpiexec -n 28 gpfsio -n 1,2,4,6,8,12,16,24,28 -t 1,2,4,8,16 -i 4 --trim ...\n"
    "  Figures 3 to 8 show the same numbers; Table 10 is one cell on file systems of one component each.\n"
    "  CPU of clients and servers:      mpiexec -n 5 gpfsio -n 4 -t 1 --server /var/lib/gupfs/pid@4 ...\n"
    "                                   where process 4 runs on the server.\n"
    "\n"
    "The time of a test runs from the first start of a thread to the last end of one, over all nodes. Each thread\n"
    "reads its clock after the barrier and after its last record. Clocks of nodes differ: before and after each test\n"
    "the job measures by messages how far each is from that of process 0, and the report says by how much that may\n"
    "be wrong. MB are 2^20 bytes. A rate is all bytes over that time. CPU of a node is in percent of all\n"
    "its processors, from the start of its first thread to its last end; that of a server over the whole test.\n"
    "\n"
    "Where the description (gpfs-1.4, 'Benchmark' and Appendices B and C) leaves a choice, this program does the\n"
    "following:\n"
    "  - write makes the file anew, untimed, and so allocates; rewrite writes over what is there; read reads what\n"
    "    this job wrote in the same cell. Without write the file is filled first, untimed.\n"
    "  - The file is opened before the barrier and closed after the last record: neither is timed. What write-behind\n"
    "    has not written at a thread's last record is not in its time, unless -e is given; after the time it is\n"
    "    synced, so that it does not disturb the next test.\n"
    "  - The runs of a cell follow one another: write, read, write, read ... Nothing empties caches but -F, which\n"
    "    reaches only the kernel's page cache, and -r, which needs two nodes.\n"
    "  - --trim needs three runs or more (Appendix C: four). Rates that are equal are left out once.\n"
    "  - The document has no rewrite, strided, separate files, direct I/O or check; they are for comparison.\n"
    "  - -C: the pattern is made, and what is read is compared, within the time. After each test that writes,\n"
    "    each node reads back, untimed, what the node before it wrote. Passes are counted from 1 to 255 and again.\n"
    "\n"
    "Environment: GPFSIO_TRACE=DIR writes each read and write to DIR/PROCESS.THREAD, one line each: operation\n"
    "(fill and check are not measured), nodes, threads, run, file, offset, bytes. It slows the tests down.\n"
    "\n"
    "Exit status: 0; 1 if the run failed (one process says why, the files are removed unless -K is given); 2 if\n"
    "the command line makes no sense.\n";

static bool read_server(void *to, int letter, const char *value) {
    static char names[SERVERS_MAX][PATH_MAX];
    struct options *options = to;
    (void)letter;
    if (options->server_count == SERVERS_MAX) {
        fail("more than %d servers", SERVERS_MAX);
        return false;
    }
    char *name = names[options->server_count];
    struct server *server = &options->servers[options->server_count++];
    const char *at = strrchr(value, '@');
    const size_t length = at != NULL ? (size_t)(at - value) : strlen(value);
    int64_t process = 0;
    if (length >= PATH_MAX || (length == 0 && at == NULL) ||
        (at != NULL && !parse_number(at + 1, 0, NODES_MAX, &process))) {
        fail("--server %s: not a pid or a file that holds one, and then @ and a process of the job", value);
        return false;
    }
    memcpy(name, value, length);
    name[length] = '\0';
    *server = (struct server){.what = name, .process = (int)process};
    return true;
}

#define AT(field) .at = offsetof(struct options, field)
#define FLAG(character, word, field) {.letter = (character), .name = (word), .kind = OPTION_FLAG, AT(field)}

const struct option_row OPTION_ROWS[] = {
    {.letter = 'n', .name = "nodes", .kind = OPTION_NUMBERS, AT(nodes), .least = 1, .most = NODES_MAX},
    {.letter = 't', .name = "threads", .kind = OPTION_NUMBERS, AT(threads), .least = 1, .most = THREADS_MAX},
    {.letter = 'o', .name = "operations", .kind = OPTION_WORDS, AT(operations),
     .what = "write,rewrite,read"},
    {.letter = 'c', .name = "records", .kind = OPTION_NUMBER, AT(records), .least = 1, .most = RECORDS_MAX},
    {.letter = 'b', .name = "record-size", .kind = OPTION_SIZE, AT(record_bytes), .least = 1,
     .what = "the record size"},
    {.letter = 'i', .name = "runs", .kind = OPTION_NUMBER, AT(runs), .least = 1, .most = RUNS_MAX},
    FLAG(OPTION_LONG, "trim", trim),
    {.letter = 'd', .name = "directory", .kind = OPTION_TEXT, AT(directory)},
    FLAG('U', "unique", unique),
    FLAG('S', "strided", strided),
    FLAG('T', "separate", separate),
    FLAG('r', "rotate", rotate),
    FLAG('I', "direct", direct),
    FLAG('e', "sync", sync),
    FLAG('F', "forget", drop),
    FLAG('C', "check", check),
    FLAG('K', "keep", keep),
    {.letter = 'N', .name = "report", .kind = OPTION_TEXT, AT(report_base)},
    {.letter = OPTION_LONG + 1, .name = "json", .kind = OPTION_TEXT, AT(json)},
    {.letter = OPTION_LONG + 2, .name = "server", .kind = OPTION_OWN, .read = read_server},
    FLAG(OPTION_LONG + 3, "plan", plan),
    {0},
};

struct options gpfsio_options = {
    .threads = {.count = 1, .values = {1}},
    .operations = {[OP_WRITE] = true, [OP_READ] = true},
    .records = 2000,
    .record_bytes = 256 * 1024,
    .runs = 6,
    .directory = ".",
};

static bool file_fits(const struct options *options) {
    int64_t bytes = 0;
    return !__builtin_mul_overflow(options->records, options->record_bytes, &bytes) &&
           !__builtin_mul_overflow(bytes, numbers_largest(&options->threads), &bytes) &&
           !__builtin_mul_overflow(bytes, numbers_largest(&options->nodes), &bytes);
}

void options_check(void) {
    struct options *options = &gpfsio_options;
    if (options->nodes.count == 0) {
        options->nodes = (struct numbers){.count = 1, .values = {job.count}};
    }
    if (numbers_largest(&options->nodes) > job.count) {
        fail("-n: %lld nodes, and the job has %d processes", (long long)numbers_largest(&options->nodes), job.count);
    } else if (options->strided && options->separate) {
        fail("-S and -T contradict each other: each thread has its own file");
    } else if (options->trim && options->runs < 3) {
        fail("--trim needs three runs or more (-i)");
    } else if (options->direct && options->record_bytes % 512 != 0) {
        fail("-I: the record size must be a multiple of 512");
    } else if (options->check && options->record_bytes % PATTERN_UNIT != 0) {
        fail("-C: the record size must be a multiple of %d", PATTERN_UNIT);
    } else if (!file_fits(options)) {
        fail("the file would end beyond what a file can hold");
    }
    for (int i = 0; i < options->server_count; i++) {
        const struct server *server = &options->servers[i];
        if (server->process < job.count) continue;
        fail("--server %s@%d: the job has %d processes", server->what, server->process, job.count);
    }
}
