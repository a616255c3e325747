#include <stddef.h>
#include <string.h>

#include "mptio.h"

const char OPTIONS_HELP_TEXT[] =
    "mptio [-G|-P|-T|-R dev [-R dev]...] [-f fsize|-F fsize] -b recsz -t nth [-k num]...\n"
    "      [-N name] [-d dir] [-U] [-O p] [-O t] [-a nrand] [-r] [-I] [-s offset] [-K] [-C]\n"
    "      [--json file] [--plan]\n"
    "\n"
    "Measures parallel I/O of MPI processes on files or devices: run it under mpiexec. Each process has nth\n"
    "threads, and each thread opens a file, works on its region with read and write, and closes it.\n"
    "\n"
    "  -G         I/O to a single, global file (default): dir/File\n"
    "  -P         I/O to a file of each process: dir/File_PROCESS\n"
    "  -T         I/O to a file of each thread: dir/File_PROCESS_THREAD\n"
    "  -R dev     I/O to this block or raw device; several are shared by the threads of each process\n"
    "  -f fsize   bytes of each process\n"
    "  -F fsize   bytes of all processes together\n"
    "  -b recsz   bytes of each read and write\n"
    "  -t nth     threads of each process\n"
    "  -k num     do not run test num; may be given several times\n"
    "  -N name    write the report to name_YYYYMMDD_HHMMSS instead of standard output\n"
    "  -d dir     directory of the files (default: the current one)\n"
    "  -U         make a unique directory in it, and put the files there\n"
    "  -O p       all processes work on the same region (not with -P or -T)\n"
    "  -O t       all threads of a process work on the same region (not with -T)\n"
    "  -a nrand   operations of each thread in a random test (default: its number of records)\n"
    "  -r         after each test, process P takes over the regions of process P-1, thread by thread\n"
    "  -I         direct I/O (O_DIRECT), where the file system has it\n"
    "  -s offset  added to the offset of all I/O\n"
    "  -K         keep the files (default: remove them at the end)\n"
    "  -C         check the files between tests\n"
    "  --json file  write the whole result, all times included, as one JSON object\n"
    "  --plan     do nothing, but print who would work where: test, process, thread, file, offset, recsz,\n"
    "             records of the region; one line for each thread and test\n"
    "  --help     this text\n"
    "\n"
    "fsize, recsz and offset are bytes, or end in K, M or G (2^10, 2^20, 2^30).\n"
    "\n"
    "Tests:  0 Seq_Write   each thread writes its region from begin to end; makes the files\n"
    "        1 Rd_Mod_Wr   reads the next record, changes a word, seeks back, writes it\n"
    "        2 Rand_Write  writes random records of its region\n"
    "        3 Seq_Read    reads its region from begin to end\n"
    "        4 Rand_Read   reads random records of its region\n"
    "\n"
    "The number of records of a thread, numrec, is chosen so that nth * numrec * recsz comes closest to fsize\n"
    "(numrec * recsz with -O t), the smaller of two.\n"
    "\n"
    "Report: Rate is all bytes over the longest time of a process; E-Rate is all bytes over E-Time, which runs\n"
    "from the barrier that starts all processes to the one that all have reached (the longest that a process\n"
    "saw: they leave a barrier one after another); %DtVar is the difference of\n"
    "the longest and the shortest time of a process, in percent of E-Time. MB are 2^20 bytes.\n"
    "\n"
    "Where the description (gupfs-2002, Appendix A.1) leaves a choice, this program does the following:\n"
    "  - -f or -F, -b and -t must be given. -F is divided by the number of processes also with -O p: it is\n"
    "    the amount of I/O, not the length of the file.\n"
    "  - -R: nth grows to the next multiple of the number of devices; thread k works on device\n"
    "    k / (nth / devices). recsz and offset grow to multiples of the largest device block. A regular file\n"
    "    may stand in for a device (blocks of 512 bytes). Devices are never made, cut or removed.\n"
    "  - Test 0 makes files but does not cut those that exist. Without test 0 they must exist. They are\n"
    "    removed at the end in both cases, unless -K is given. A test changes no byte outside the regions.\n"
    "  - -r: only tests that are run rotate. With one process there is nothing to rotate.\n"
    "  - -a counts operations of each thread. Which records are drawn depends only on the place of the region\n"
    "    and on the test, so that two runs of the same command do the same I/O.\n"
    "  - Rd_Mod_Wr counts both the bytes read and the bytes written.\n"
    "  - The time of a process contains the open and the close of its files, and no fsync.\n"
    "  - %Sys is the system time of a process (all threads) in percent of its time: over 100 is possible.\n"
    "  - -I: recsz and offset must be multiples of 512; where O_DIRECT is refused at open, the page cache is\n"
    "    used and a note in the report says so.\n"
    "  - -C: each 16 bytes of a file hold their own offset and a word that tells process, thread and pass\n"
    "    (test, counted from 1 in the order of this run), with a check sum. recsz and offset must be\n"
    "    multiples of 16.\n"
    "    After each test (and before the first one, if it is not test 0) each thread reads the region that\n"
    "    it has next: with -r that is what a neighbour wrote. Records not yet written in this run must come\n"
    "    from an earlier run with -C and the same files. Making the pattern costs time in the writing tests.\n"
    "\n"
    "Environment: MPTIO_TRACE=DIR writes each read and write to DIR/PROCESS.THREAD, one line each:\n"
    "test, r|w|c (c: read by -C), path, offset, bytes. It slows the tests down.\n"
    "\n"
    "Exit status: 0; 1 if the run failed (one process says why, the files are removed unless -K is given); 2 if\n"
    "the command line makes no sense.\n";

/* Which of the modes, and its device. */
static bool read_mode(void *to, int letter, const char *value) {
    static const char letters[] = "GPTR";
    struct options *options = to;
    const enum mode mode = (enum mode)(strchr(letters, letter) - letters);
    if (options->mode_given && options->mode != mode) {
        fail("only one of -G, -P, -T and -R may be given");
        return false;
    }
    options->mode_given = true;
    options->mode = mode;
    if (mode != MODE_DEVICES) return true;
    if (options->device_count == DEVICES_MAX) {
        fail("more than %d devices", DEVICES_MAX);
        return false;
    }
    options->devices[options->device_count++] = value;
    return true;
}

static bool read_skip(void *to, int letter, const char *value) {
    struct options *options = to;
    (void)letter;
    int64_t number = 0;
    if (!parse_number(value, 0, TEST_COUNT - 1, &number)) {
        fail("-k %s: the tests are 0 to %d", value, TEST_COUNT - 1);
        return false;
    }
    options->skip[number] = true;
    return true;
}

static bool read_overlap(void *to, int letter, const char *value) {
    struct options *options = to;
    (void)letter;
    if (strcmp(value, "p") == 0) {
        options->overlap_processes = true;
    } else if (strcmp(value, "t") == 0) {
        options->overlap_threads = true;
    } else {
        fail("-O %s: only p (processes) and t (threads) can overlap", value);
        return false;
    }
    return true;
}

#define AT(field) .at = offsetof(struct options, field)

const struct option_row OPTION_ROWS[] = {
    {.letter = 'G', .kind = OPTION_OWN_FLAG, .read = read_mode},
    {.letter = 'P', .kind = OPTION_OWN_FLAG, .read = read_mode},
    {.letter = 'T', .kind = OPTION_OWN_FLAG, .read = read_mode},
    {.letter = 'R', .kind = OPTION_OWN, .read = read_mode},
    {.letter = 'f', .kind = OPTION_SIZE, AT(process_bytes), .least = 1, .what = "the file size"},
    {.letter = 'F', .kind = OPTION_SIZE, AT(global_bytes), .least = 1, .what = "the file size"},
    {.letter = 'b', .kind = OPTION_SIZE, AT(record_bytes), .least = 1, .what = "the record size"},
    {.letter = 's', .kind = OPTION_SIZE, AT(offset), .what = "the offset"},
    {.letter = 't', .kind = OPTION_NUMBER, AT(threads), .least = 1, .most = THREADS_MAX},
    {.letter = 'a', .kind = OPTION_NUMBER, AT(random_count), .least = 1, .most = INT64_MAX},
    {.letter = 'k', .kind = OPTION_OWN, .read = read_skip},
    {.letter = 'O', .kind = OPTION_OWN, .read = read_overlap},
    {.letter = 'N', .kind = OPTION_TEXT, AT(report_base)},
    {.letter = 'd', .kind = OPTION_TEXT, AT(directory)},
    {.letter = 'U', .kind = OPTION_FLAG, AT(unique)},
    {.letter = 'r', .kind = OPTION_FLAG, AT(rotate)},
    {.letter = 'I', .kind = OPTION_FLAG, AT(direct)},
    {.letter = 'K', .kind = OPTION_FLAG, AT(keep)},
    {.letter = 'C', .kind = OPTION_FLAG, AT(check)},
    {.letter = OPTION_LONG, .name = "plan", .kind = OPTION_FLAG, AT(plan)},
    {.letter = OPTION_LONG + 1, .name = "json", .kind = OPTION_TEXT, AT(json)},
    {0},
};

struct options mptio_options = {.directory = "."};

/* What options say about one another. */
void options_check(void) {
    const struct options *options = &mptio_options;
    if (options->process_bytes != 0 && options->global_bytes != 0) {
        fail("only one of -f and -F may be given");
    } else if (options->process_bytes == 0 && options->global_bytes == 0) {
        fail("the file size is missing: -f or -F");
    } else if (options->record_bytes == 0) {
        fail("the record size is missing: -b");
    } else if (options->threads == 0) {
        fail("the number of threads is missing: -t");
    } else if (options->overlap_processes && options->mode == MODE_PROCESS) {
        fail("-O p and -P contradict each other: each process has its own file");
    } else if (options->overlap_processes && options->mode == MODE_THREAD) {
        fail("-O p and -T contradict each other: each thread has its own file");
    } else if (options->overlap_threads && options->mode == MODE_THREAD) {
        fail("-O t and -T contradict each other: each thread has its own file");
    } else {
        for (int test = 0; test < TEST_COUNT; test++) {
            if (!options->skip[test]) return;
        }
        fail("-k skips all tests");
    }
}
