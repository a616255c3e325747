"""gpfsio: bad input and failures: one message, from one process, a status, no hang, nothing left behind."""

import os
import subprocess

from harness import MPIEXEC, Case, end, every_mpi, finish, in_own_mounts, launch, mpi, mpi_with_first, program, wait_until

GPFSIO = program("gpfsio")

# Options -> what the message says. One process.
USAGE = [
    ("-n 2", "-n: 2 nodes, and the job has 1 processes"),
    ("-n 0", "-n 0: not a list of at most 64 different numbers from 1 to"),
    ("-n 1,1", "-n 1,1: not a list"),
    ("-n 1,", "-n 1,: not a list"),
    ("-n ,", "-n ,: not a list"),
    ("-t 1,x", "-t 1,x: not a list"),
    ("-t 1,2,1", "-t 1,2,1: not a list"),
    ("-t 4097", "-t 4097: not a list"),
    ("-o append", "-o append: only some of write,rewrite,read, with commas between"),
    ("-o write,", "-o write,: only some of"),
    ("-o writ", "-o writ: only some of"),
    ("-c 0", "-c 0: not a number from 1"),
    ("-c 2K", "-c 2K: not a number"),
    ("-b 0", "-b 0: the record size is bytes, .* not 0"),
    ("-b 4X", "-b 4X: the record size"),
    ("-i 0", "-i 0: not a number from 1 to 1000"),
    ("-i 2 --trim", "--trim needs three runs or more"),
    ("-S -T", "-S and -T contradict each other"),
    ("-I -b 1000", "-I: the record size must be a multiple of 512"),
    ("-C -b 1000", "-C: the record size must be a multiple of 16"),
    ("-c 1000000000 -b 1000000000G", "-b 1000000000G|beyond what a file can hold"),
    ("-c 1000000000 -b 8G -t 4", "beyond what a file can hold"),
    ("--server nobody@1", "--server nobody@1: the job has 1 processes"),
    ("--server x@y", "--server x@y: not a pid or a file"),
    ("--json", "--json needs a value"),
    ("-b", "-b needs a value"),
    ("-z", "unknown option -z"),
    ("--fast", "unknown option"),
    ("--trim=yes", "--trim takes no value"),
    ("more", "more: not an option"),
]
# What fails when the job begins. Two processes.
PLACES = [
    ("-d /nonexistent", "directory /nonexistent: No such file"),
    ("-d /dev/null", "/dev/null is not a directory"),
    ("-U -d /nonexistent", "cannot make a directory in /nonexistent: No such file"),
    ("--json /nonexistent/file", "cannot make the result /nonexistent/file.part: No such file"),
    ("--json /dev", "--json /dev: there is something that is no file"),
    ("-N /nonexistent/report", "cannot make the report"),
    ("--server /nonexistent/pid", "--server /nonexistent/pid: No such file"),
    ("--server /dev/null@1", "--server /dev/null: the file does not hold a pid"),
    ("--server 2147483647", "there is no process 2147483647 here"),
]


class Errors(Case):
    def words(self, *more):
        return [GPFSIO, "-d", self.dir, "-c", "8", "-b", "1K", "-i", "1", *more]

    def test_command_lines_that_make_no_sense(self):
        for index, (options, pattern) in enumerate(USAGE):
            with self.subTest(options=options):
                words = [GPFSIO, "-d", self.dir, *options.split()]
                pattern = "^gpfsio: process 0: .*(" + pattern + ")"
                job = self.bad(mpi(1, *words) if index % 10 == 0 else words, pattern)
                self.assertEqual((job.code, job.out), (2, ""))
                self.assertEqual(os.listdir(self.dir), [])

    def test_places_that_do_not_do(self):
        for options, pattern in PLACES:
            with self.subTest(options=options):
                job = self.bad(mpi(2, *self.words(*options.split())), "^gpfsio: process [01]: .*" + pattern)
                self.assertEqual((job.code, job.out), (1, ""))
                self.assertEqual(os.listdir(self.dir), [])

    @every_mpi
    def test_processes_that_were_started_differently(self):
        words = [*MPIEXEC, "-n", "1", *self.words(), ":", "-n", "1", *self.words("-r")]
        job = self.bad(words, "process 1: the command line differs from that of process 0")
        self.assertEqual(job.code, 2)

    @every_mpi
    def test_a_full_file_system(self):
        listing = f"{self.aside}/listing"
        for keep in (False, True):
            words = [GPFSIO, "-d", self.dir, "-c", "64", "-b", "16K", "-t", "2"] + ["-K"] * keep
            words += ["--json", f"{self.aside}/result"]
            shell = '%s -n 3 "$0" "$@"; code=$?; ls -R "%s" >"%s"; exit $code' % (" ".join(MPIEXEC), self.dir, listing)
            command = in_own_mounts(f"mount -t tmpfs -o size=1m none '{self.dir}'", ["sh", "-c", shell, *words])
            self.bad(command, r"^gpfsio: process \d: write, 3 nodes, 2 threads: thread \d: write of 16384 bytes .*"
                              "gpfsio.data: No space left on device")
            with open(listing, encoding="ascii") as file:
                self.assertEqual("gpfsio.data" in file.read(), keep)
            self.assertEqual(sorted(os.listdir(self.aside)), ["listing"])

    @every_mpi
    def test_one_process_that_fails_in_the_middle(self):
        # Process 0 has a disk of its own, too small; the others would write for hours, each 16 bytes of its file.
        unshare = "unshare --mount" if os.geteuid() == 0 else "unshare --mount --map-root-user"
        shell = f"""exec {unshare} sh -c 'mount -t tmpfs -o size=1m none "{self.dir}" && exec "$0" "$@"' "$0" "$@" """
        words = [GPFSIO, "-d", self.dir, "-T", "-t", "1", "-c", "1000000000", "-b", "16"]
        self.bad(mpi_with_first(shell, 3, *words), r"^gpfsio: process 0: write, 3 nodes, 1 threads: thread 0: .*No space left")
        self.assertEqual(os.listdir(self.dir), [])

    def test_a_file_that_another_cuts(self):
        # The reads of the second run find the end.
        job = launch(mpi(2, GPFSIO, "-d", self.dir, "-c", "2000", "-b", "4K", "-i", "1000", "-o", "read"))
        try:
            path = os.path.join(self.dir, "gpfsio.data")
            wait_until(lambda: self.files().get("gpfsio.data") == 2 * 2000 * 4096, "the file")
            os.truncate(path, 1000)
            done = finish(job)
        finally:
            end(job)
        self.assertEqual((done.code, len(done.err.splitlines())), (1, 1), done)
        self.assertRegex(done.err, r"^gpfsio: process \d: read, 2 nodes, 1 threads: thread 0: read of 4096 .*the file ends")
        self.assertEqual(os.listdir(self.dir), [])

    @every_mpi
    def test_a_server_that_ends(self):
        server = subprocess.Popen(["sleep", "600"])
        job = launch(mpi(2, GPFSIO, "-d", self.dir, "-c", "1000", "-b", "1K", "-i", "1000", "--server", f"{server.pid}@1"))
        try:
            wait_until(lambda: self.files(), "the job works")
            server.kill()
            server.wait()
            done = finish(job)
        finally:
            end(job)
        self.assertEqual((done.code, len(done.err.splitlines())), (1, 1), done)
        self.assertRegex(done.err, rf"^gpfsio: process 1: --server {server.pid}: process {server.pid} has ended")
        self.assertEqual(os.listdir(self.dir), [])

    @every_mpi
    def test_nothing_is_left_when_a_process_is_killed(self):
        words = [GPFSIO, "-d", self.dir, "-U", "-T", "-t", "2", "-c", "1000000000", "-b", "16", "-o", "write",
                 "-N", os.path.join(self.dir, "report"), "--json", os.path.join(self.dir, "result")]
        self.nothing_left_when_killed(3, words, lambda: len(self.files()) == 3 * 2 + 2 and min(
            size for name, size in self.files().items() if "gpfsio." in name) > 0, "the files of three processes")

    def test_reports_that_cannot_be_written(self):
        with open("/dev/full", "w", encoding="ascii") as full:
            job = subprocess.run(self.words("--json", f"{self.aside}/result"), stdout=full, stderr=subprocess.PIPE,
                                 text=True, check=False, timeout=60)
        self.assertEqual((job.returncode, len(job.stderr.splitlines())), (1, 1), job)
        self.assertIn("cannot write the report to standard output", job.stderr)
        self.assertEqual(os.listdir(self.dir), [])

    def test_a_result_replaces_the_one_before_only_when_it_is_whole(self):
        path = f"{self.aside}/result"
        with open(path, "w", encoding="ascii") as file:
            file.write("before")
        self.bad(mpi(2, *self.words("--json", path, "-C")), "is wrong", env=self.lie("write", "gpfsio.data", 0))
        with open(path, encoding="ascii") as file:
            self.assertEqual(file.read(), "before")
        self.good(mpi(2, *self.words("--json", path)))
        with open(path, encoding="ascii") as file:
            self.assertEqual(file.read()[0], "{")
