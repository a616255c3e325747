"""pioraw: which bytes each process touches, volumes and rates recomputed, devices, -C, bad input and failures."""

import itertools
import json
import os
import subprocess

from harness import KIB, MIB, Case, end, every_mpi, finish, in_own_mounts, launch, mpi, mpi_with_first, program, rows_of
from harness import run, stamps, wait_until

PIORAW = program("pioraw")
GROUND = 0xA5


class Pioraw(Case):
    def words(self, processes, *more):
        return mpi(processes, PIORAW, "-d", self.dir, "-t", "0.02", *more)

    def devices(self, *sizes):
        """Files that stand in for devices, full of GROUND."""
        paths = []
        for index, size in enumerate(sizes):
            paths.append(os.path.join(self.aside, f"dev{index}"))
            with open(paths[-1], "wb") as file:
                file.write(bytes([GROUND]) * size)
        return paths

    def check_pass(self, lines, path, base, each, region, is_timed):
        """A test goes round and round; what is not measured goes once."""
        offsets = [int(line[4]) for line in lines]
        self.assertEqual({line[3] for line in lines}, {path})
        if is_timed:
            self.assertEqual({int(line[5]) for line in lines}, {each})
            self.assertEqual(offsets, [base + i * each % region for i in range(len(lines))])
        return min(len(lines) * each, region)

    def test_each_process_touches_its_file_and_no_other(self):
        # 40 blocks: 25K do not fill the file of 64K, operations of 3K neither.
        words = self.words(3, "-p", "1,3", "-f", "40K", "-s", "1K", "-k", "1,25,3", "-K", "-C")
        _, trace = self.trace("PIORAW_TRACE", words)
        for (process, _), lines in trace.items():
            passes = [(key, list(group)) for key, group in itertools.groupby(lines, key=lambda line: tuple(line[:3]))]
            expected = []
            for processes in ("1", "3"):
                if process < int(processes):
                    for blocks in ("1", "25", "3"):
                        expected += [("write", processes, blocks), ("check", processes, blocks)]
                    # What no test has written; then what all processes read back of it.
                    expected += [("fill", processes, "3"), ("check", processes, "3")]
                    expected += [("read", processes, blocks) for blocks in ("1", "25", "3")]
            self.check_order(passes, expected, process)
        self.assertEqual(self.files(), {f"pioraw.{process}": 40 * KIB for process in range(3)})

    def check_order(self, passes, expected, process):
        """The passes of a process; a fill of nothing leaves no trace, and the check after it joins the one before it."""
        reached = 0
        found = dict(passes)
        for key in expected:
            name, processes, blocks = key
            if name == "write" and blocks == "1":
                reached = 0
            if name == "fill" and key not in found:
                self.assertEqual(reached, 40 * KIB)
                continue
            lines = found[key]
            each = int(blocks) * KIB
            region = 40 * KIB // each * each
            home = (process - 1) % int(processes) if name == "check" else process
            end_of_pass = self.check_pass(lines, f"{self.dir}/pioraw.{home}", 0, each, region, name in ("write", "read"))
            if name == "write":
                reached = max(reached, end_of_pass)
            if name == "fill":
                self.assertEqual(int(lines[0][4]), reached)
                self.assertEqual(sum(int(line[5]) for line in lines), 40 * KIB - reached)
            if name == "read":
                self.assertEqual({int(line[5]) for line in lines}, {each})
        self.assertEqual([key for key, _ in passes if key[0] in ("write", "read")],
                         [key for key in expected if key[0] in ("write", "read")])

    def test_the_plan_of_table_b_3(self):
        device, = self.devices(0)
        os.truncate(device, 5 * 256 * MIB)
        plan = self.good(mpi(5, PIORAW, "--plan", "-p", "1,2,3,4,5", "-R", device)).out.splitlines()
        expected = [f"{pes} {process} {device} {process * 256 * MIB} {256 * MIB} {blocks} {256 * MIB}"
                    for pes in (1, 2, 3, 4, 5) for process in range(pes)
                    for blocks in (1, 4, 16, 64, 256, 1024, 4096, 16384)]
        self.assertEqual(plan, expected)
        plan = self.good(mpi(1, PIORAW, "--plan", "-d", self.dir, "-f", "40K", "-k", "1,3,25")).out.splitlines()
        self.assertEqual(plan, [f"1 0 {self.dir}/pioraw.0 0 {40 * KIB} {blocks} {region * KIB}"
                                for blocks, region in ((1, 40), (3, 39), (25, 25))])

    @every_mpi
    def test_volumes_and_rates_follow_from_the_raw_times(self):
        path = os.path.join(self.aside, "result.json")
        report = self.good(self.words(3, "-p", "3,1", "-f", "64K", "-k", "1,16", "--json", path)).out
        with open(path, encoding="utf-8") as file:
            whole = json.load(file)
        results = whole["results"]
        self.assertEqual((whole["program"], whole["test_seconds"]), ("pioraw", 0.02))
        self.assertEqual([(r["processes"], r["operation"], r["blocks"]) for r in results],
                         list(itertools.product((3, 1), ("write", "read"), (1, 16))))
        raw = iter(rows_of(report, "RAW TIMES"))
        for result in results:
            self.assertEqual([p["process"] for p in result["raw"]], list(range(result["processes"])))
            self.assertEqual(result["bytes"], sum(p["bytes"] for p in result["raw"]))
            self.assertEqual(result["seconds"], max(p["seconds"] for p in result["raw"]))
            self.assertAlmostEqual(result["rate_mb_s"], result["bytes"] / MIB / result["seconds"], delta=1e-6)
            for process in result["raw"]:
                # No process stops before its time is over, and each does at least one operation.
                self.assertGreaterEqual(process["seconds"], 0.02)
                self.assertEqual(process["bytes"] % (result["blocks"] * KIB), 0)
                self.assertGreater(process["bytes"], 0)
                row = next(raw)
                self.assertEqual(row[:5], [result["operation"], str(result["processes"]), str(result["blocks"]),
                                           str(process["process"]), str(process["bytes"])])
                self.assertAlmostEqual(float(row[5]), process["seconds"], delta=1e-8)
        self.assertIsNone(next(raw, None))
        self.check_form(report, results)

    def check_form(self, report, results):
        """The tables stand in the form of Table B-3."""
        lines = report.splitlines()
        for pes in (3, 1):
            at = lines.index(f"Number of PEs: {pes}")
            self.assertEqual(lines[at + 1:at + 3], ["Blocksize: 1024 bytes", "WRITE"])
            self.assertEqual([line.split()[0] for line in lines[at + 3:at + 7]], ["#blks", "1", "16", "[0]"])
            self.assertEqual((lines[at + 6], lines[at + 8]), ("[0] Filesize: 65536 bytes", "READ"))
            for first, operation in ((at + 4, "write"), (at + 10, "read")):
                for line, blocks in zip(lines[first:first + 2], (1, 16), strict=True):
                    result, = [r for r in results if (r["processes"], r["operation"], r["blocks"]) == (pes, operation, blocks)]
                    _, rate, volume, seconds = line.split()
                    self.assertAlmostEqual(float(rate), result["rate_mb_s"], delta=0.00501)
                    self.assertAlmostEqual(float(volume), result["bytes"] / MIB, delta=0.000501)
                    self.assertAlmostEqual(float(seconds), result["seconds"], delta=0.000000501)

    def test_the_time_is_kept(self):
        report = self.good(mpi(2, PIORAW, "-d", self.dir, "-t", "0.5", "-f", "64K", "-k", "4", "-o", "write")).out
        for row in rows_of(report, "RAW TIMES"):
            self.assertTrue(0.5 <= float(row[5]) < 5, row)

    def test_devices_are_written_in_the_parts_of_the_processes_alone(self):
        first, second = self.devices(100 * KIB, 100 * KIB)
        words = mpi(3, PIORAW, "-t", "0.02", "-R", first, "-R", second, "-f", "16K", "-s", "1K", "-k", "1,5", "-C")
        self.good(words)
        for path, owners in ((first, (0, 2)), (second, (1,))):
            with open(path, "rb") as file:
                data = file.read()
            used = 16 * KIB * len(owners)
            self.assertEqual(data[used:], bytes([GROUND]) * (100 * KIB - used))
            for index, (at, process, thread, _) in enumerate(stamps(data[:used])):
                self.assertEqual((at, process, thread), (index * 16, owners[index * 16 // (16 * KIB)], 0))

    def test_a_block_device(self):
        device, below = self.loop("block", 4096, bytes([GROUND]) * MIB)
        words = [PIORAW, "-t", "0.02", "-R", device, "-f", "128K", "-k", "1,5", "-C", "-I"]
        self.bad(mpi(3, *words), "-s: the block size must be a multiple of 4096")
        self.bad(mpi(9, *words, "-s", "4K"), "has 1048576 bytes, and the parts of the processes end at 1179648")
        self.good(mpi(3, *words, "-s", "4K"))
        with open(below, "rb") as file:
            data = file.read()
        self.assertEqual(data[3 * 128 * KIB:], bytes([GROUND]) * (MIB - 3 * 128 * KIB))
        for index, (at, process, _, _) in enumerate(stamps(data[:3 * 128 * KIB])):
            self.assertEqual((at, process), (index * 16, index * 16 // (128 * KIB)))

    def test_reads_of_a_device_leave_it_alone(self):
        path, = self.devices(64 * KIB)
        os.chmod(path, 0o444)
        self.good(mpi(2, PIORAW, "-t", "0.02", "-R", path, "-f", "32K", "-k", "1,4", "-o", "read"))
        with open(path, "rb") as file:
            self.assertEqual(file.read(), bytes([GROUND]) * 64 * KIB)

    def test_direct_io_sync_and_forget(self):
        words = self.words(2, "-f", "64K", "-s", "4K", "-k", "1,3", "-I", "-e", "-F", "-C")
        self.good(in_own_mounts(f"mount -t tmpfs none '{self.dir}'", words))
        self.bad(in_own_mounts(f"mount -t ramfs none '{self.dir}'", words), "pioraw.[01] for direct I/O: Invalid")

    def test_a_wrong_byte_is_found(self):
        words = self.words(3, "-f", "64K", "-k", "1,16", "-C")
        self.bad(words, "process 1: check, 3 processes, 1 blocks: .*pioraw.0 is wrong at offset 2: "
                        "written last by process 0, pass 1", env=self.lie("write", "pioraw.0", 2))
        self.bad(words, "process 0: check, 3 processes, 1 blocks: .*pioraw.2 is wrong at offset 5121: ",
                 env=self.lie("read", "pioraw.2", 5121))
        self.bad(words, "process 2: check, 3 processes, 1 blocks: .*pioraw.1 is wrong at offset 1025: .*0x0+ instead",
                 env=self.lie("lose", "pioraw.1", 1024))
        # The file reaches beyond the byte in the second pass, if not in a second round of the first.
        self.bad(self.words(3, "-f", "64K", "-k", "64,16", "-C"), "process 2: check, 3 processes, 16 blocks: .*pioraw.1 "
                 "is wrong at offset 8: .*process 1, pass 2; found: process 1, thread 0, pass 1",
                 env=self.lie("stale", "pioraw.1", 0))
        self.assertEqual(os.listdir(self.dir), [])

    def test_a_byte_that_changes_on_a_device_is_found(self):
        path, = self.devices(64 * KIB)
        words = mpi(2, PIORAW, "-t", "0.02", "-R", path, "-f", "32K", "-k", "1", "-C")
        self.bad(words, "process 0: check, 2 processes, 1 blocks: .*dev0 is wrong at offset 40003: written last by process 1",
                 env=self.lie("write", "dev0", 40003 // 16 * 16 + 3))

    def test_help_names_every_option(self):
        text = self.good(mpi(2, PIORAW, "--help")).out
        for option in "-p -t -f -s -k -o -d -U -R -I -e -F -C -K -N --json --plan --help PIORAW_TRACE".split():
            self.assertIn(option, text)
        self.assertEqual(text.count("Measures how much"), 1)
        self.assertEqual(run([PIORAW, "--help"]).out, text)


# Options -> what the message says. One process.
USAGE = [
    ("-p 2", "-p: 2 processes, and the job has 1"),
    ("-p 1,1", "-p 1,1: not a list"),
    ("-k 0", "-k 0: not a list"),
    ("-k 4,4", "-k 4,4: not a list"),
    ("-k 262145", "-k: 262145 blocks of 1024 bytes are more than the file size, 268435456 bytes"),
    ("-f 8M", "-k: 16384 blocks of 1024 bytes are more than the file size"),
    ("-t 0", "-t 0: not a number of seconds from above 0"),
    ("-t -1", "-t -1: not a number of seconds"),
    ("-t 1e3", "-t 1e3: not a number of seconds"),
    ("-t .", "-t .: not a number of seconds"),
    ("-t 2s", "-t 2s: not a number of seconds"),
    ("-t 10000000", "-t 10000000: not a number of seconds from above 0 to"),
    ("-f 0", "-f 0: the file size"),
    ("-s 3 -f 16M -k 1", "the file size must be a multiple of the block size"),
    ("-o rewrite", "-o rewrite: only some of write,read"),
    ("-I -s 100 -f 100K -k 1", "-I: the block size must be a multiple of 512"),
    ("-C -s 100 -f 100K -k 1", "-C: the block size must be a multiple of 16"),
    ("-R /dev/null -U", "-R and -U contradict each other"),
    ("-R /dev/null -C -o read", "-R with -C needs the operation write"),
    ("-f", "-f needs a value"),
    ("-z", "unknown option -z"),
    ("more", "more: not an option"),
]
# What fails when the job begins. Two processes.
PLACES = [
    ("-d /nonexistent", "directory /nonexistent: No such file"),
    ("-R /nonexistent", "device /nonexistent: No such file"),
    ("-R /dev", "/dev is neither a device nor a file"),
    ("-R /dev/zero -R /dev/zero", "are the same device"),
    ("-R /dev/zero -s 100 -f 100K", "-s: the block size must be a multiple of 512"),
    ("-R /dev/full", "write of 1024 bytes at offset 0 of /dev/full: No space left"),
    ("--json /nonexistent/file", "cannot make the result"),
    ("-N /nonexistent/report", "cannot make the report"),
]


class Errors(Case):
    def test_command_lines_that_make_no_sense(self):
        for index, (options, pattern) in enumerate(USAGE):
            with self.subTest(options=options):
                words = [PIORAW, "-d", self.dir, *options.split()]
                job = self.bad(mpi(1, *words) if index % 10 == 0 else words, "^pioraw: process 0: .*" + pattern)
                self.assertEqual((job.code, job.out), (2, ""))
                self.assertEqual(os.listdir(self.dir), [])

    def test_places_that_do_not_do(self):
        for options, pattern in PLACES:
            with self.subTest(options=options):
                words = [PIORAW, "-d", self.dir, "-t", "0.02", "-f", "64K", "-k", "1", *options.split()]
                job = self.bad(mpi(2, *words), "^pioraw: process [01]: .*" + pattern)
                self.assertEqual((job.code, job.out), (1, ""))
                self.assertEqual(os.listdir(self.dir), [])

    def test_what_is_there_already_is_left_alone(self):
        path = os.path.join(self.dir, "pioraw.1")
        with open(path, "wb") as file:
            file.write(b"precious")
        self.bad(mpi(2, PIORAW, "-d", self.dir, "-t", "0.02", "-f", "64K", "-k", "1"),
                 r"process 1: cannot make .*pioraw.1: File exists \(remove it, or use -U\)")
        self.assertEqual(self.files(), {"pioraw.1": 8})

    def test_a_device_that_is_too_small(self):
        path = os.path.join(self.aside, "dev")
        with open(path, "wb") as file:
            file.truncate(128 * KIB)
        words = [PIORAW, "-t", "0.02", "-R", path, "-f", "64K", "-k", "1"]
        self.good(mpi(2, *words))
        self.bad(mpi(3, *words), "has 131072 bytes, and the parts of the processes end at 196608")
        self.good(mpi(3, *words, "-p", "2"))

    @every_mpi
    def test_one_process_that_fails_in_the_middle(self):
        # Process 0 has a disk of its own, too small; the others would write for an hour.
        unshare = "unshare --mount" if os.geteuid() == 0 else "unshare --mount --map-root-user"
        shell = f"""exec {unshare} sh -c 'mount -t tmpfs -o size=1m none "{self.dir}" && exec "$0" "$@"' "$0" "$@" """
        words = [PIORAW, "-d", self.dir, "-t", "3600", "-f", "2M", "-k", "4"]
        self.bad(mpi_with_first(shell, 3, *words), "^pioraw: process 0: write, 3 processes, 4 blocks: write .*No space left")
        self.assertEqual(os.listdir(self.dir), [])

    @every_mpi
    def test_nothing_is_left_when_a_process_is_killed(self):
        words = [PIORAW, "-d", self.dir, "-U", "-t", "3600", "-f", "2M", "-k", "4", "-N",
                 os.path.join(self.dir, "report"), "--json", os.path.join(self.dir, "result")]
        self.nothing_left_when_killed(3, words, lambda: [size for name, size in self.files().items()
                                                         if "pioraw." in name] == [2 * MIB] * 3, "three files")

    def test_a_file_that_another_cuts(self):
        job = launch(mpi(2, PIORAW, "-d", self.dir, "-t", "3600", "-f", "1M", "-k", "4", "-o", "read"))
        try:
            wait_until(lambda: self.files() == {"pioraw.0": MIB, "pioraw.1": MIB}, "the files")
            os.truncate(os.path.join(self.dir, "pioraw.1"), 1000)
            done = finish(job)
        finally:
            end(job)
        self.assertEqual((done.code, len(done.err.splitlines())), (1, 1), done)
        self.assertRegex(done.err, "^pioraw: process 1: read, 2 processes, 4 blocks: read of 4096 .*the file ends")
        self.assertEqual(os.listdir(self.dir), [])

    def test_a_report_that_cannot_be_written(self):
        with open("/dev/full", "w", encoding="ascii") as full:
            job = subprocess.run([PIORAW, "-d", self.dir, "-t", "0.02", "-f", "64K", "-k", "1"], stdout=full,
                                 stderr=subprocess.PIPE, text=True, check=False, timeout=60)
        self.assertEqual((job.returncode, len(job.stderr.splitlines())), (1, 1), job)
        self.assertIn("cannot write the report to standard output", job.stderr)
        self.assertEqual(os.listdir(self.dir), [])
