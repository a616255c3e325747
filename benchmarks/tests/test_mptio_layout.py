"""mptio: which bytes of which files each thread touches, against the document and a twin of its arithmetic."""

import collections
import itertools
import os
from fractions import Fraction

from harness import KIB, MIB, Case, every_mpi, mpi, program, run

MPTIO = program("mptio")

# One line of the trace or of --plan.
Io = collections.namedtuple("Io", "test what path offset size")
Region = collections.namedtuple("Region", "path offset record count")


def read_plan(text):
    """{(test, process, thread): Region}"""
    plan = {}
    for line in text.splitlines():
        test, process, thread, path, offset, record, count = line.split()
        plan[int(test), int(process), int(thread)] = Region(path, int(offset), int(record), int(count))
    return plan


def read_trace(directory):
    """{(process, thread): [Io]}"""
    trace = {}
    for name in os.listdir(directory):
        with open(os.path.join(directory, name), encoding="ascii") as file:
            lines = [line.split() for line in file]
        key = tuple(int(part) for part in name.split("."))
        trace[key] = [Io(int(t), w, p, int(o), int(s)) for t, w, p, o, s in lines]
    return trace


def twin(directory, processes, threads, record, total=None, each=None, mode="G", overlap="", devices=(),
         offset=0, rotations=0):
    """The regions by the text of Appendix A.1, in the plainest way: {(process, thread): Region}."""
    devices = list(devices)
    per_device = threads // len(devices) if devices else threads
    file_size = Fraction(total, processes) if total else Fraction(each)
    exact = file_size / record / (1 if "t" in overlap else threads)
    # The whole number closest to it; the smaller of two.
    count = min(range(int(exact), int(exact) + 2), key=lambda n: abs(exact - n))
    regions = {}
    for process, thread in itertools.product(range(processes), range(threads)):
        home = (process - rotations) % processes
        in_file = thread % per_device if devices else thread
        place = 0 if "t" in overlap else in_file
        across = 1 if "t" in overlap else per_device
        if mode == "G" or mode == "R":
            place += 0 if "p" in overlap else home * across
        if mode == "G":
            path = f"{directory}/File"
        elif mode == "P":
            path = f"{directory}/File_{home}"
        elif mode == "T":
            path, place = f"{directory}/File_{home}_{thread}", 0
        else:
            path = devices[thread // per_device]
        regions[process, thread] = Region(path, offset + place * count * record, record, count)
    return regions


class Document(Case):
    """The examples and figures of Appendix A.1, with the document's own sizes."""

    def plan(self, processes, *options):
        return read_plan(self.good(mpi(processes, MPTIO, "--plan", *options)).out)

    def test_example_1_and_figures_a1_and_a3(self):
        plan = self.plan(4, "-G", "-f", "1G", "-b", "256K", "-t", "2", "-d", self.dir)
        path = f"{self.dir}/File"
        half = 512 * MIB
        # Process 0 thread 0, process 0 thread 1, process 1 thread 0, ...: eight regions in a row.
        for test in range(5):
            for index in range(8):
                region = Region(path, index * half, 256 * KIB, 2048)
                self.assertEqual(plan[test, index // 2, index % 2], region)
        self.assertEqual(len(plan), 5 * 8)
        self.assertEqual(os.listdir(self.dir), [])

    def test_figure_a2(self):
        plan = self.plan(4, "-G", "-f", "1G", "-b", "256K", "-t", "2", "-O", "t", "-d", self.dir)
        for process in range(4):
            region = Region(f"{self.dir}/File", process << 30, 256 * KIB, 4096)
            self.assertEqual((plan[0, process, 0], plan[0, process, 1]), (region, region))

    @every_mpi
    def test_example_2_and_figure_a4(self):
        plan = self.plan(2, "-P", "-F", "512M", "-b", "64K", "-t", "4", "-r", "-k", "1", "-k", "2", "-k", "4",
                         "-d", self.dir)
        expected = {}
        for process, thread in itertools.product(range(2), range(4)):
            offset = thread * 64 * MIB
            expected[0, process, thread] = Region(f"{self.dir}/File_{process}", offset, 64 * KIB, 1024)
            # Process 1 works on File_0 during the sequential read test, and process 0 on File_1.
            expected[3, process, thread] = Region(f"{self.dir}/File_{1 - process}", offset, 64 * KIB, 1024)
        self.assertEqual(plan, expected)

    def test_example_3(self):
        devices = [os.path.join(self.aside, name) for name in ("dev0", "dev1")]
        for device in devices:
            with open(device, "wb") as file:
                file.truncate(512 * MIB)
        plan = self.plan(3, "-F", "512M", "-b", "64K", "-t", "2", "-R", devices[0], "-R", devices[1], "-k", "1")
        for process, thread in itertools.product(range(3), range(2)):
            region = Region(devices[thread], process * 1365 * 64 * KIB, 64 * KIB, 1365)
            self.assertEqual(plan[0, process, thread], region)
        self.assertEqual(sorted({test for test, _, _ in plan}), [0, 2, 3, 4])

    def test_the_sample_report(self):
        # 800 records of 256K are 200 MB of each process, 200 records of each of 4 threads.
        plan = self.plan(3, "-f", "200M", "-b", "256K", "-t", "4", "-d", self.dir)
        self.assertEqual({region.count for region in plan.values()}, {200})


# options of mptio, processes, then what the twin is told; sizes that need rounding among them.
LAYOUTS = [
    ("-G -f 256K -b 16K -t 2", 3, dict(mode="G", each=256 * KIB, record=16 * KIB, threads=2)),
    ("-f 250000 -b 1000 -t 3", 2, dict(mode="G", each=250000, record=1000, threads=3)),
    ("-G -F 1000000 -b 4K -t 3 -s 12345", 3, dict(mode="G", total=1000000, record=4096, threads=3, offset=12345)),
    ("-G -f 100K -b 8K -t 2 -O t", 3, dict(mode="G", each=100 * KIB, record=8192, threads=2, overlap="t")),
    ("-G -f 100K -b 8K -t 2 -O p", 3, dict(mode="G", each=100 * KIB, record=8192, threads=2, overlap="p")),
    ("-G -F 300K -b 8K -t 2 -O p -O t", 3, dict(mode="G", total=300 * KIB, record=8192, threads=2, overlap="pt")),
    ("-P -f 100K -b 8K -t 2", 3, dict(mode="P", each=100 * KIB, record=8192, threads=2)),
    ("-P -f 100K -b 8K -t 2 -O t -s 4K", 2, dict(mode="P", each=100 * KIB, record=8192, threads=2, overlap="t",
                                                 offset=4096)),
    ("-T -f 100K -b 8K -t 3", 2, dict(mode="T", each=100 * KIB, record=8192, threads=3)),
    ("-T -F 200K -b 512 -t 2 -s 1K", 2, dict(mode="T", total=200 * KIB, record=512, threads=2, offset=1024)),
    ("-G -f 24K -b 16K -t 1", 2, dict(mode="G", each=24 * KIB, record=16 * KIB, threads=1)),
    ("-G -f 9 -b 3 -t 2", 2, dict(mode="G", each=9, record=3, threads=2)),
    ("-G -f 64K -b 4K -t 2 -I", 2, dict(mode="G", each=64 * KIB, record=4096, threads=2)),
    ("-G -f 64K -b 4K -t 4 -C", 3, dict(mode="G", each=64 * KIB, record=4096, threads=4)),
    ("-G -f 64K -b 4K -t 4 -C -r -O t", 3, dict(mode="G", each=64 * KIB, record=4096, threads=4, overlap="t",
                                                rotate=True)),
    ("-G -f 64K -b 4K -t 4 -C -O p -O t", 3, dict(mode="G", each=64 * KIB, record=4096, threads=4, overlap="pt")),
    ("-P -f 64K -b 4K -t 2 -r -C", 3, dict(mode="P", each=64 * KIB, record=4096, threads=2, rotate=True)),
    ("-T -f 64K -b 4K -t 2 -r -C -I", 4, dict(mode="T", each=64 * KIB, record=4096, threads=2, rotate=True)),
    ("-G -f 64K -b 4K -t 2 -r -C -a 5", 4, dict(mode="G", each=64 * KIB, record=4096, threads=2, rotate=True)),
    ("-R DEV -f 100K -b 4K -t 2 -s 8K", 2, dict(mode="R", each=100 * KIB, record=4096, threads=2, offset=8192)),
    # Rounded up to blocks of 512 bytes, and to as many threads on each of the devices.
    ("-R DEV -R DEV -f 100K -b 1000 -t 3 -s 1 -C -r", 3,
     dict(mode="R", each=100 * KIB, record=1024, threads=4, offset=512, rotate=True)),
    ("-R DEV -R DEV -F 300K -b 4K -t 4 -O t -C", 2,
     dict(mode="R", total=300 * KIB, record=4096, threads=4, overlap="t")),
    ("-R DEV -R DEV -f 100K -b 4K -t 4 -O p -C", 3,
     dict(mode="R", each=100 * KIB, record=4096, threads=4, overlap="p")),
    ("-R DEV -R DEV -R DEV -f 100K -b 4K -t 1 -O p -O t -C", 2,
     dict(mode="R", each=100 * KIB, record=4096, threads=3, overlap="pt")),
]
DEVICE_BYTES = 1 * MIB
GROUND = 0xA5
GROUND_BYTES = bytes([GROUND]) * DEVICE_BYTES


class Layouts(Case):
    """Each row of LAYOUTS, run: trace and files against the twin (--plan against it: see Tests)."""

    def prepare(self, options):
        """The words, with files that stand in for devices."""
        devices = []
        words = options.split()
        for index, word in enumerate(words):
            if word == "DEV":
                words[index] = os.path.join(self.top, f"dev{len(devices)}")
                devices.append(words[index])
                with open(words[index], "wb") as file:
                    file.write(bytes([GROUND]) * DEVICE_BYTES)
        return words, devices

    def check_trace(self, plan, trace, words):
        """The trace is what the twin says, test for test."""
        draws = int(words[words.index("-a") + 1]) if "-a" in words else None
        for (test, process, thread), region in plan.items():
            ios = [io for io in trace[process, thread] if io.test == test and io.what != "c"]
            in_order = [region.offset + i * region.record for i in range(region.count)]
            self.assertEqual({(io.path, io.size) for io in ios}, {(region.path, region.record)})
            places = [(io.what, io.offset) for io in ios]
            if test == 0:
                self.assertEqual(places, [("w", offset) for offset in in_order])
            elif test == 1:
                self.assertEqual(places, [(w, offset) for offset in in_order for w in "rw"])
            elif test == 3:
                self.assertEqual(places, [("r", offset) for offset in in_order])
            else:
                self.assertEqual({what for what, _ in places}, {"w" if test == 2 else "r"})
                self.assertEqual(len(places), draws or region.count)
                self.assertLessEqual({offset for _, offset in places}, set(in_order))

    def check_header(self, report, processes, threads, region, overlap):
        fields = report.splitlines()[2].split()
        records = region.count * (1 if "t" in overlap else threads)
        expected = [records * region.record / MIB, region.record / KIB, processes, threads, processes * threads,
                    records, region.count]
        for field, value in zip(fields, expected, strict=True):
            self.assertAlmostEqual(float(field), value, delta=abs(value) * 1e-9)

    def check_files(self, regions, devices):
        """The files are there with the sizes that the regions give, and nothing else is; devices keep their rest."""
        ends = collections.defaultdict(int)
        touched = collections.defaultdict(list)
        for region in regions.values():
            end = region.offset + region.record * region.count
            ends[region.path] = max(ends[region.path], end)
            touched[region.path].append((region.offset, end))
        if not devices:
            self.assertEqual({os.path.join(self.dir, name): size for name, size in self.files().items()}, ends)
            return
        self.assertEqual(self.files(), {})
        self.assertEqual(sorted(touched), sorted(devices))
        for path, ranges in touched.items():
            with open(path, "rb") as file:
                data = file.read()
            self.assertEqual(len(data), DEVICE_BYTES)
            position = 0
            for begin, end in sorted(set(ranges)):
                self.assertEqual(data[position:begin].strip(bytes([GROUND])), b"", (path, position, begin))
                for record in range(begin, end, 512):
                    self.assertNotEqual(data[record:record + 512], bytes([GROUND]) * 512, (path, record))
                position = max(position, end)
            self.assertEqual(data[position:].strip(bytes([GROUND])), b"")

    def test_layouts(self):
        for options, processes, told in LAYOUTS:
            with self.subTest(options=options, processes=processes):
                self.setUp()
                words, devices = self.prepare(options)
                told = dict(told)
                rotate = told.pop("rotate", False)
                words = words + ["-d", self.dir, "-K"]
                regions = {}
                for test in range(5):
                    regions[test] = twin(self.dir, processes, devices=devices, rotations=test if rotate else 0, **told)
                plan = {(t, *who): region for t in regions for who, region in regions[t].items()}
                traces = os.path.join(self.aside, "trace")
                os.mkdir(traces)
                job = self.good(mpi(processes, MPTIO, *words), env={"MPTIO_TRACE": traces})
                self.check_trace(plan, read_trace(traces), words)
                self.check_header(job.out, processes, told["threads"], regions[0][0, 0], told.get("overlap", ""))
                self.check_files(regions[0], devices)
                self.doCleanups()

    def test_random_records_are_the_same_ones_in_each_run(self):
        runs = []
        for name in "ab":
            traces = os.path.join(self.aside, name)
            os.mkdir(traces)
            self.good(mpi(2, MPTIO, "-f", "64K", "-b", "1K", "-t", "2", "-d", self.dir),
                      env={"MPTIO_TRACE": traces})
            runs.append(read_trace(traces))
        self.assertEqual(runs[0], runs[1])
        # Threads draw differently, and so do the two random tests.
        drawn = {(who, test): tuple(io.offset - min(i.offset for i in ios) for io in ios if io.test == test)
                 for who, ios in runs[0].items() for test in (2, 4)}
        self.assertEqual(len(set(drawn.values())), len(drawn))


class BlockDevices(Case):
    """Real ones: loop devices, which need root."""

    def test_records_and_offset_follow_the_largest_block(self):
        small, below_small = self.loop("small", 512, GROUND_BYTES)
        large, below_large = self.loop("large", 4096, GROUND_BYTES)
        words = ["-R", small, "-R", large, "-f", "100000", "-b", "1000", "-s", "1", "-t", "3", "-C", "-r", "-I"]
        report = self.good(mpi(3, MPTIO, *words)).out
        self.assertIn("Note: 4 threads per process instead of 3,", report)
        self.assertIn("Note: record size 4096 and offset 4096,", report)
        self.assertNotIn("O_DIRECT", report)
        # 100000 / 4 / 4096 is closest to 6 records: two threads of each of three processes on each device.
        begin, end = 4096, 4096 + 3 * 2 * 6 * 4096
        for path in (below_small, below_large):
            with open(path, "rb") as file:
                data = file.read()
            self.assertEqual(data[:begin] + data[end:], bytes([GROUND]) * (DEVICE_BYTES - end + begin))
            offsets = [int.from_bytes(data[at:at + 8], "little") for at in range(begin, end, 16)]
            self.assertEqual(offsets, list(range(begin, end, 16)))

    def test_a_device_that_is_too_small(self):
        device, _ = self.loop("dev", 512, GROUND_BYTES)
        self.bad(mpi(2, MPTIO, "-R", device, "-f", "512K", "-b", "64K", "-t", "2", "-s", "512"),
                 f"device {device} has 1048576 bytes, and the regions end at 1049088")
        self.bad(mpi(2, MPTIO, "-R", device, "-R", device, "-f", "64K", "-b", "4K", "-t", "2"), "are the same device")


class Tests(Case):
    """Which tests run, and what each leaves."""

    def test_skipped_tests_do_not_run_and_do_not_rotate(self):
        for skipped in ([], [1, 2, 4], [1], [2, 3], [1, 2, 3, 4], [4, 4]):
            words = ["-f", "8K", "-b", "1K", "-t", "2", "-d", self.dir, "-r"]
            words += [word for test in skipped for word in ("-k", test)]
            plan = read_plan(self.good(mpi(3, MPTIO, "--plan", *words)).out)
            done = [test for test in range(5) if test not in skipped]
            flat = {}
            for rotations, test in enumerate(done):
                regions = twin(self.dir, 3, 2, KIB, each=8 * KIB, rotations=rotations)
                flat.update({(test, *who): region for who, region in regions.items()})
            self.assertEqual(plan, flat)
            report = self.good(mpi(3, MPTIO, *words)).out
            names = ["Seq_Write", "Rd_Mod_Wr", "Rand_Write", "Seq_Read", "Rand_Read"]
            rows = [line.split()[0] for line in report.split("NODE")[0].splitlines()[6:] if line]
            self.assertEqual(rows, [names[test] for test in done])

    def test_read_modify_write_changes_one_word_of_each_record(self):
        device = os.path.join(self.aside, "dev")
        before = bytes(range(256)) * 256
        with open(device, "wb") as file:
            file.write(before)
        self.good(mpi(2, MPTIO, "-R", device, "-f", "16K", "-b", "1K", "-t", "2", "-s", "2K", "-k", "0", "-k", "2",
                      "-k", "3", "-k", "4"))
        with open(device, "rb") as file:
            after = file.read()
        changed = [at for at in range(len(before)) if before[at] != after[at]]
        self.assertEqual(sorted({at // KIB for at in changed}), list(range(2, 34)))
        for record in range(2, 34):
            inside = [at % KIB for at in changed if at // KIB == record]
            self.assertLess(max(inside) - min(inside), 8)

    def test_a_file_that_exists_is_not_cut(self):
        path = os.path.join(self.dir, "File")
        with open(path, "wb") as file:
            file.write(b"x" * 100_000)
        self.good(mpi(2, MPTIO, "-f", "16K", "-b", "1K", "-t", "2", "-K", "-s", "1000", "-d", self.dir))
        with open(path, "rb") as file:
            data = file.read()
        self.assertEqual((len(data), data[:1000], data[1000 + 32 * KIB:]), (100_000, b"x" * 1000,
                                                                          b"x" * (99_000 - 32 * KIB)))

    def test_files_are_removed_unless_kept(self):
        for mode in ("-G", "-P", "-T"):
            for unique in ([], ["-U"]):
                words = mpi(2, MPTIO, mode, "-f", "8K", "-b", "1K", "-t", "2", "-d", self.dir, *unique)
                self.good(words)
                self.assertEqual(os.listdir(self.dir), [])
        self.good(mpi(2, MPTIO, "-P", "-f", "8K", "-b", "1K", "-t", "2", "-d", self.dir, "-U", "-K"))
        self.good(mpi(2, MPTIO, "-P", "-f", "8K", "-b", "1K", "-t", "2", "-d", self.dir, "-U", "-K"))
        directories = os.listdir(self.dir)
        self.assertEqual(len(directories), 2)
        for name in directories:
            self.assertEqual(self.files(os.path.join(self.dir, name)), {"File_0": 8 * KIB, "File_1": 8 * KIB})

    def test_the_default_directory_is_the_current_one(self):
        self.good(mpi(2, MPTIO, "-f", "8K", "-b", "1K", "-t", "1", "-K"), cwd=self.dir)
        self.assertEqual(self.files(), {"File": 16 * KIB})

    def test_reads_of_kept_files_and_their_removal(self):
        words = ["-f", "8K", "-b", "1K", "-t", "2", "-d", self.dir]
        self.good(mpi(2, MPTIO, *words, "-K"))
        self.good(mpi(2, MPTIO, *words, "-k", "0", "-k", "1", "-k", "2"))
        self.assertEqual(self.files(), {})

    @every_mpi
    def test_help_names_every_option(self):
        text = self.good(mpi(2, MPTIO, "--help")).out
        for option in "-G -P -T -R -f -F -b -t -k -N -d -U -O -a -r -I -s -K -C --plan --json --help MPTIO_TRACE".split():
            self.assertIn(f"{option}", text)
        self.assertEqual(text.count("Measures parallel I/O"), 1)
        self.assertEqual(run([MPTIO, "--help"]).out, text)
