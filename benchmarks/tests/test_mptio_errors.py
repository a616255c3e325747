"""mptio: bad input and failures: one message, from one process, a status, no hang, nothing left behind."""

import os
import shlex
import signal
import subprocess

from harness import MPIEXEC, Case, end, every_mpi, finish, in_own_mounts, launch, mpi, mpi_with_first, program, run, wait_until

MPTIO = program("mptio")
GOOD = "-f 64K -b 4K -t 2"

# What follows the directory -> what the message says. 2 processes.
USAGE = [
    (f"{GOOD} -G -P", "only one of -G, -P, -T and -R"),
    (f"{GOOD} -G -T", "only one of -G, -P, -T and -R"),
    (f"{GOOD} -P -T", "only one of -G, -P, -T and -R"),
    (f"{GOOD} -R /dev/zero -G", "only one of -G, -P, -T and -R"),
    (f"{GOOD} -O p -P", "-O p and -P contradict"),
    (f"{GOOD} -O p -T", "-O p and -T contradict"),
    (f"{GOOD} -O t -T", "-O t and -T contradict"),
    (f"{GOOD} -O x", "-O x: only p .* and t"),
    (f"{GOOD} -F 1M", "only one of -f and -F"),
    ("-b 4K -t 2", "file size is missing"),
    ("-f 64K -t 2", "record size is missing"),
    ("-f 64K -b 4K", "number of threads is missing"),
    ("-f 12Q -b 4K -t 2", "-f 12Q: the file size"),
    ("-f 1.5G -b 4K -t 2", "-f 1.5G"),
    ("-f -5 -b 4K -t 2", "-f -5"),
    ("-f K -b 4K -t 2", "-f K"),
    ("-f 1KB -b 4K -t 2", "-f 1KB"),
    ("-f 0 -b 4K -t 2", "-f 0: .* not 0"),
    ("-F 99999999999G -b 4K -t 2", "-F 99999999999G"),
    ("-f 64K -b x -t 2", "-b x"),
    ("-f 64K -b 0 -t 2", "-b 0"),
    ("-f 64K -b 4K -t 0", "-t 0: not a number from 1"),
    ("-f 64K -b 4K -t 2x", "-t 2x"),
    ("-f 64K -b 4K -t 99999", "-t 99999"),
    (f"{GOOD} -s 1Z", "-s 1Z"),
    (f"{GOOD} -a 0", "-a 0"),
    (f"{GOOD} -k 5", "-k 5: the tests are 0 to 4"),
    (f"{GOOD} -k -1", "-k -1"),
    (f"{GOOD} -k 0 -k 1 -k 2 -k 3 -k 4", "skips all tests"),
    (f"{GOOD} -b", "-b needs a value"),
    (f"{GOOD} -z", "unknown option -z"),
    (f"{GOOD} --fast", "unknown option"),
    (f"{GOOD} more", "more: not an option"),
]
SIZES = [
    ("-f 64K -b 128K -t 1", "record size, 131072 bytes, is larger than the file size of a process, 65536"),
    ("-F 64K -b 64K -t 1", "larger than the file size of a process, 32768"),
    ("-f 64K -b 64K -t 3", "3 threads with records of 65536 bytes do not fit"),
    ("-f 8388607T -b 4K -t 2", "-f 8388607T"),
    ("-f 8000000000G -b 1M -t 2", "beyond what a file can hold"),
    ("-f 1G -b 4K -t 2 -s 8589934591G", "beyond what a file can hold"),
    ("-f 64K -b 1000 -t 2 -I", "-I: .* multiples of 512"),
    (f"{GOOD} -s 100 -I", "-I: .* multiples of 512"),
    ("-f 64K -b 1000 -t 2 -C", "-C: .* multiples of 16"),
    (f"{GOOD} -R /nonexistent/dev", "device /nonexistent/dev: No such file"),
    (f"{GOOD} -R /dev", "neither a device nor a file"),
    (f"{GOOD} -R /dev/zero -R /dev/zero", "are the same device"),
    (f"{GOOD} -R /dev/full", "write of 4096 bytes .*/dev/full: No space left"),
    (f"{GOOD} -k 0", "File does not exist, and test 0"),
    (f"{GOOD} -N /nonexistent/report", "cannot make the report"),
]


class Errors(Case):
    def in_directory(self, options):
        return ["-d", self.dir, *options.split()]

    def test_command_lines_that_make_no_sense(self):
        # In one process, which goes the same way; a job of several is started for some, and for all of SIZES.
        for index, (options, pattern) in enumerate(USAGE):
            with self.subTest(options=options):
                words = [MPTIO, *self.in_directory(options)]
                job = self.bad(mpi(2, *words) if index % 8 == 0 else words, "^mptio: process 0: .*" + pattern)
                self.assertEqual((job.code, job.out), (2, ""))
                self.assertEqual(os.listdir(self.dir), [])

    def test_sizes_and_places_that_do_not_fit(self):
        for options, pattern in SIZES:
            with self.subTest(options=options):
                job = self.bad(mpi(2, MPTIO, *self.in_directory(options)), "^mptio: process 0: .*" + pattern)
                self.assertEqual(job.out, "")
                self.assertEqual(os.listdir(self.dir), [])

    def test_directories_that_are_none(self):
        path = os.path.join(self.aside, "file")
        with open(path, "wb"):
            pass
        for unique in ([], ["-U"]):
            self.bad(mpi(2, MPTIO, *GOOD.split(), "-d", self.dir + "/none", *unique), "No such file")
            self.bad(mpi(2, MPTIO, *GOOD.split(), "-d", path, *unique), "[nN]ot a directory")

    def test_a_device_that_is_too_small(self):
        path = os.path.join(self.aside, "dev")
        with open(path, "wb") as file:
            file.truncate(128 << 10)
        self.good(mpi(2, MPTIO, *GOOD.split(), "-R", path))
        self.bad(mpi(2, MPTIO, *GOOD.split(), "-R", path, "-s", "1"), "131072 bytes, and the regions end at 131584")
        self.assertEqual(os.path.getsize(path), 128 << 10)

    @every_mpi
    def test_processes_that_were_started_differently(self):
        first = ["-n", "1", MPTIO, *self.in_directory(GOOD)]
        words = [*MPIEXEC, *first, ":", "-n", "2", MPTIO, *self.in_directory(GOOD), "-r"]
        job = self.bad(words, "process 1: the command line differs from that of process 0")
        self.assertEqual(job.code, 2)

    def test_a_file_that_is_too_short_to_read(self):
        self.good(mpi(2, MPTIO, *self.in_directory(GOOD), "-K"))
        os.truncate(os.path.join(self.dir, "File"), 100_000)
        words = [*self.in_directory(GOOD), "-K", "-k", "0", "-k", "1", "-k", "2", "-k", "4"]
        self.bad(mpi(2, MPTIO, *words), "process 1: thread 1: read of 4096 bytes at offset 98304 of .*: the file ends")

    @every_mpi
    def test_a_full_directory(self):
        # All processes, and the file system itself: a tmpfs that is too small.
        for keep in (False, True):
            listing = f"{self.aside}/listing"
            words = [MPTIO, "-P", "-U", "-f", "1M", "-b", "64K", "-t", "2", "-d", self.dir] + ["-K"] * keep
            shell = f'{shlex.join(mpi(3))} "$0" "$@"; code=$?; ls -R "{self.dir}" >"{listing}"; exit $code'
            command = in_own_mounts(f"mount -t tmpfs -o size=1m none '{self.dir}'", ["sh", "-c", shell, *words])
            self.bad(command, r"^mptio: process \d: thread \d: write of 65536 bytes .*: No space left on device")
            with open(listing, encoding="ascii") as file:
                self.assertEqual("File_" in file.read(), keep)

    @every_mpi
    def test_one_process_that_fails_in_the_middle(self):
        # Process 0 has a disk of its own, too small; the others would read for hours.
        unshare = "unshare --mount" if os.geteuid() == 0 else "unshare --mount --map-root-user"
        shell = f"""exec {unshare} sh -c 'mount -t tmpfs -o size=1m none "{self.dir}" && exec "$0" "$@"' "$0" "$@" """
        words = ["-P", "-f", "2M", "-b", "64K", "-t", "2", "-d", self.dir, "-a", "1000000000", "-k", "1", "-k", "2"]
        self.bad(mpi_with_first(shell, 3, MPTIO, *words), r"^mptio: process 0: thread \d: write .*: No space left")
        self.assertEqual(os.listdir(self.dir), [])

    @every_mpi
    def test_the_others_hear_of_it_at_once(self):
        # Process 0 fails in the random test, after one read; the others have 10^12 reads before them.
        words = ["-P", "-f", "1M", "-b", "64K", "-t", "1", "-d", self.dir, "-K"]
        self.good(mpi(3, MPTIO, *words))
        os.truncate(os.path.join(self.dir, "File_0"), 0)
        job = self.bad(mpi(3, MPTIO, *words, "-a", "1000000000000", "-k", "0", "-k", "1", "-k", "2", "-k", "3"),
                       "^mptio: process 0: thread 0: read .*: the file ends$")
        self.assertEqual(job.code, 1)

    @every_mpi
    def test_nothing_is_left_when_a_process_is_killed(self):
        words = ["-P", "-U", "-f", "1M", "-b", "64K", "-t", "2", "-d", self.dir, "-a", "1000000000000", "-k", "2",
                 "-N", os.path.join(self.dir, "report")]
        self.nothing_left_when_killed(3, [MPTIO, *words], lambda: len(self.files()) == 4,
                                      "the files of three processes and the report")

    @every_mpi
    def test_nothing_is_left_when_the_job_is_interrupted(self):
        words = ["-f", "1M", "-b", "64K", "-t", "2", "-d", self.dir, "-a", "1000000000000", "-k", "2"]
        job = launch(mpi(2, MPTIO, *words))
        try:
            wait_until(lambda: self.files().get("File") == 2 << 20, "the file")
            # What mpiexec returns for this is its own affair.
            os.kill(job.pid, signal.SIGINT)
            finish(job)
        finally:
            end(job)
        wait_until(lambda: os.listdir(self.dir) == [], "the cleaners have removed everything")

    def test_a_report_that_cannot_be_written(self):
        with open("/dev/full", "w", encoding="ascii") as full:
            job = subprocess.run([MPTIO, *self.in_directory(GOOD)], stdout=full, stderr=subprocess.PIPE, text=True,
                                 check=False, timeout=60)
        self.assertEqual((job.returncode, len(job.stderr.splitlines())), (1, 1), job)
        self.assertIn("cannot write the report to standard output", job.stderr)
        self.assertEqual(os.listdir(self.dir), [])

    @every_mpi
    def test_a_single_process_without_mpiexec(self):
        job = run([MPTIO, *self.in_directory(GOOD)])
        self.assertEqual((job.code, job.err), (0, ""))
