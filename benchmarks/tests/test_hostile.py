"""mptio and metabench where users go astray: odd sizes and names, places that refuse, other jobs, signals to mpiexec."""

import os
import signal

from harness import KIB, MIB, Case, end, every_mpi, finish, in_own_mounts, launch, mpi, program, wait_until
from test_mptio_layout import read_plan, read_trace

MPTIO = program("mptio")
METABENCH = program("metabench")
SMALL = ["-f", "64K", "-b", "4K", "-t", "2"]
STRANGE = "a directory, with späces; $(and) 'quotes' \"two\" \\ *"


class Traces(Case):
    """The document's examples and figures with a 1024th of its sizes and all of its records, as they were written."""

    def traced(self, processes, *options):
        traces = os.path.join(self.aside, f"trace.{len(os.listdir(self.aside))}")
        os.mkdir(traces)
        self.good(mpi(processes, MPTIO, *options), env={"MPTIO_TRACE": traces})
        return read_trace(traces)

    def check(self, processes, document, scaled):
        """Each write and read in order is where --plan of the document's own options has it, 1024 times as far."""
        plan = read_plan(self.good(mpi(processes, MPTIO, "--plan", *document)).out)
        trace = self.traced(processes, *scaled)
        self.assertEqual(set(trace), {(process, thread) for _, process, thread in plan})
        for (test, process, thread), region in plan.items():
            ios = [io for io in trace[process, thread] if io.test == test]
            self.assertEqual([(io.path, io.offset * KIB, io.size * KIB) for io in ios],
                             [(region.path, region.offset + i * region.record, region.record)
                              for i in range(region.count)])

    def test_example_1(self):
        skip = ["-k", "1", "-k", "2", "-k", "4", "-d", self.dir]
        self.check(4, ["-G", "-f", "1G", "-b", "256K", "-t", "2", *skip], ["-G", "-f", "1M", "-b", "256", "-t", "2", *skip])

    def test_figure_a2(self):
        skip = ["-O", "t", "-k", "1", "-k", "2", "-k", "4", "-d", self.dir]
        self.check(4, ["-G", "-f", "1G", "-b", "256K", "-t", "2", *skip], ["-G", "-f", "1M", "-b", "256", "-t", "2", *skip])

    def test_example_2(self):
        skip = ["-r", "-k", "1", "-k", "2", "-k", "4", "-d", self.dir]
        self.check(2, ["-P", "-F", "512M", "-b", "64K", "-t", "4", *skip], ["-P", "-F", "512K", "-b", "64", "-t", "4", *skip])

    def test_example_3(self):
        # Devices have blocks of 512 bytes: a 128th of the sizes instead of a 1024th, and as many records.
        devices = [os.path.join(self.top, name) for name in ("dev0", "dev1")]
        for device in devices:
            with open(device, "wb") as file:
                file.truncate(512 * MIB)
        words = ["-t", "2", "-R", devices[0], "-R", devices[1], "-k", "1", "-k", "2", "-k", "4"]
        plan = read_plan(self.good(mpi(3, MPTIO, "--plan", "-F", "512M", "-b", "64K", *words)).out)
        trace = self.traced(3, "-F", "4M", "-b", "512", *words)
        for (test, process, thread), region in plan.items():
            self.assertEqual((region.path, region.count), (devices[thread], 1365))
            places = [(io.path, io.offset * 128) for io in trace[process, thread] if io.test == test]
            self.assertEqual(places, [(region.path, region.offset + i * region.record) for i in range(1365)])


class Sizes(Case):
    def test_one_byte_records_and_one_record_for_each_thread(self):
        self.good(mpi(1, MPTIO, "-f", "7", "-b", "1", "-t", "7", "-d", self.dir, "-K"))
        self.assertEqual(self.files(), {"File": 7})
        self.good(mpi(3, MPTIO, "-T", "-f", "3", "-b", "1", "-t", "3", "-d", self.dir, "-K", "-r"))
        self.assertEqual(self.files(), {"File": 7, **{f"File_{p}_{t}": 1 for p in range(3) for t in range(3)}})

    def test_more_threads_than_records(self):
        # 4/7 of a record for each of seven threads are closer to one than to none; 4/8 are not.
        out = self.good(mpi(2, MPTIO, "-f", "64K", "-b", "16K", "-t", "7", "-d", self.dir, "-K", "-C")).out
        self.assertEqual(self.files(), {"File": 2 * 7 * 16 * KIB})
        self.assertIn("Note: 114688 bytes per process instead of 65536", out)
        self.bad(mpi(2, MPTIO, "-f", "64K", "-b", "16K", "-t", "8", "-d", self.dir), "8 threads with records .* do not fit")

    def test_offsets_beyond_32_bits(self):
        for offset in (2**31 - 8, 2**32 + 16, 2**36):
            self.good(mpi(2, MPTIO, *SMALL, "-s", offset, "-d", self.dir, "-K", "-C" if offset % 16 == 0 else "-r"))
            self.assertEqual(self.files(), {"File": offset + 128 * KIB})
            os.unlink(os.path.join(self.dir, "File"))

    def test_random_tests_of_one_record(self):
        self.good(mpi(2, MPTIO, "-f", "16K", "-b", "16K", "-t", "1", "-a", "50", "-d", self.dir, "-C", "-r"))

    def test_metabench_of_one_file(self):
        self.good(mpi(1, METABENCH, "-CSUA", "-c", "1", "-b", "1", "-f", "1", "-w", self.dir))
        self.assertEqual(len(self.files()), 9)
        self.assertEqual({name: size for name, size in self.files().items() if size},
                         {"append_a.0/f0.0": 1, "append_b/f0.0": 1})

    def test_names_of_many_files(self):
        # Over each power of ten, by the process that works and by the one that prepares.
        self.good(mpi(2, METABENCH, "-CS", "-c", "1002", "-w", self.dir))
        for directory in ("create_a", "create_b.0", "create_c", "stat_a.0", "stat_b"):
            self.assertEqual(set(os.listdir(os.path.join(self.dir, directory))), {f"f0.{i}" for i in range(1002)})


class Places(Case):
    def test_names_that_shells_would_break(self):
        place = os.path.join(self.dir, STRANGE)
        os.mkdir(place)
        self.good(mpi(2, MPTIO, *SMALL, "-C", "-r", "-K", "-d", place))
        self.assertEqual(self.files(place), {"File": 128 * KIB})
        self.good(mpi(2, MPTIO, *SMALL, "-U", "-N", os.path.join(place, "report"), "-d", place))
        self.assertEqual(sorted(name.split("_")[0] for name in os.listdir(place)), ["File", "report"])
        self.good(mpi(3, METABENCH, "-CSUATk", "-c", "4", "-w", place, "--tar", self.archive(place)))
        self.assertEqual(len(os.listdir(place)), 3)

    def archive(self, place):
        path = os.path.join(place, "an archive: not a host.tar")
        with open(os.path.join(self.aside, "content"), "w", encoding="ascii") as file:
            file.write("content")
        self.good(["tar", "--force-local", "-cf", path, "-C", self.aside, "content"])
        return path

    def test_a_read_only_file_system(self):
        mount = f"mount -t tmpfs none '{self.dir}' && mount -o remount,ro '{self.dir}'"
        for words in ([MPTIO, *SMALL, "-d", self.dir], [MPTIO, *SMALL, "-U", "-d", self.dir],
                      [METABENCH, "-C", "-c", "9", "-w", self.dir]):
            self.bad(in_own_mounts(mount, mpi(2, *words)), "process 0: .*: Read-only file system$")

    def test_something_else_has_the_name_of_a_file(self):
        os.mkdir(os.path.join(self.dir, "File_1"))
        self.bad(mpi(2, MPTIO, "-P", *SMALL, "-d", self.dir), "process 1: thread [01]: cannot open .*/File_1: Is a directory")
        self.assertEqual(os.listdir(self.dir), ["File_1"])

    def test_a_link_that_leads_nowhere(self):
        link = os.path.join(self.dir, "link")
        os.symlink(os.path.join(self.dir, "none"), link)
        self.bad(mpi(2, MPTIO, *SMALL, "-d", link), "No such file")
        self.bad(mpi(2, METABENCH, "-C", "-c", "9", "-w", link), "No such file")

    def test_a_limit_of_the_file_size(self):
        # MPI makes files in memory itself, of some MiB.
        limit = f"ulimit -f {(16 * MIB) // KIB}"
        job = ["bash", "-c", limit + '; exec "$0" "$@"', MPTIO, "-f", "12M", "-b", "64K", "-t", "2", "-d", self.dir]
        self.bad(mpi(2, *job), "process 1: thread [01]: write .*: File too large")
        self.assertEqual(os.listdir(self.dir), [])

    def test_files_of_a_former_run(self):
        # Longer ones, of another layout, are written over and not cut; -C does not take their old bytes for ours.
        self.good(mpi(3, MPTIO, "-f", "128K", "-b", "4K", "-t", "2", "-d", self.dir, "-K", "-C"))
        self.good(mpi(2, MPTIO, "-f", "64K", "-b", "8K", "-t", "2", "-d", self.dir, "-K", "-C", "-r"))
        self.assertEqual(self.files(), {"File": 384 * KIB})
        self.good(mpi(2, MPTIO, "-f", "64K", "-b", "8K", "-t", "2", "-d", self.dir, "-C", "-k", "0", "-k", "1", "-k", "2"))


class Others(Case):
    """Other jobs in the same directory, and signals."""

    def test_two_jobs_in_one_directory(self):
        words = mpi(2, MPTIO, "-U", "-f", "1M", "-b", "4K", "-t", "2", "-C", "-r", "-d", self.dir)
        jobs = [launch(words) for _ in range(2)]
        for job in jobs:
            ended = finish(job)
            self.assertEqual((ended.code, ended.err), (0, ""), ended)
        self.assertEqual(os.listdir(self.dir), [])

    def test_a_second_metabench_is_refused_and_the_first_goes_on(self):
        words = [METABENCH, "-C", "-c", "100000000", "-w", self.dir]
        first = launch(mpi(2, *words))
        try:
            wait_until(lambda: os.path.exists(os.path.join(self.dir, "create_a", "f0.100")), "files of the first job")
            self.bad(mpi(2, *words), "process 0: cannot make the directory .*/create_a: File exists")
            self.assertTrue(os.path.exists(os.path.join(self.dir, "create_a", "f0.0")))
            self.assertIsNone(first.poll())
            os.kill(first.pid, signal.SIGTERM)
            finish(first)
        finally:
            end(first)
        wait_until(lambda: os.listdir(self.dir) == [], "the cleaners have removed everything")

    @every_mpi
    def test_signals_to_mpiexec(self):
        for which in (signal.SIGINT, signal.SIGTERM):
            for words, name in (([MPTIO, "-P", "-f", "1M", "-b", "64K", "-t", "2", "-d", self.dir, "-a", "1000000000000"],
                                 "File_1"),
                                ([METABENCH, "-C", "-c", "100000000", "-w", self.dir], "create_a/f0.100")):
                job = launch(mpi(2, *words))
                try:
                    wait_until(lambda name=name: os.path.exists(os.path.join(self.dir, name)), name)
                    os.kill(job.pid, which)
                    finish(job)
                finally:
                    end(job)
                wait_until(lambda: os.listdir(self.dir) == [], "the cleaners have removed everything")
