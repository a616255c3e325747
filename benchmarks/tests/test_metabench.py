"""metabench: what each test leaves, who takes part, the report, and failures."""

import glob
import io
import json
import os
import re
import shlex
import tarfile

from harness import MPIEXEC, Case, every_mpi, in_own_mounts, mpi, mpi_with_first, program

METABENCH = program("metabench")
GROUPS = {"C": ["create_a", "create_b", "create_c"], "S": ["stat_a", "stat_b"], "U": ["utime_a", "utime_b"],
          "A": ["append_a", "append_b"]}
NAMES = {"create_a": "Create-A", "create_b": "Create-B", "create_c": "Create-C", "stat_a": "Stat-A",
         "stat_b": "Stat-B", "utime_a": "Utime-A", "utime_b": "Utime-B", "append_a": "Append-A",
         "append_b": "Append-B", "untar": "Untar"}


def expected_counts(letters, files, participants):
    """Files of each directory, by the text of Appendix A.2."""
    each = files // participants
    counts = {}
    for test in (test for letter in letters for test in GROUPS[letter]):
        if test in ("create_b", "stat_a", "utime_a", "append_a"):
            counts.update({f"{test}.{place}": each for place in range(participants)})
        else:
            counts[test] = each * participants if test == "create_c" else files
    return counts


def section(report, title, fields):
    """The rows of a table."""
    lines = report.splitlines()
    at = next(i for i, line in enumerate(lines) if line.split()[:len(title)] == title)
    at = next(i for i in range(at, len(lines)) if lines[i].startswith("---")) + 1
    rows = []
    for line in lines[at:]:
        if not line.strip():
            break
        rows.append(line.split())
        assert len(rows[-1]) == fields, line
    return rows


class Metabench(Case):
    def counts(self):
        """Files in each directory below the working directory, all levels."""
        found = {name: 0 for name in os.listdir(self.dir)}
        for path in self.files():
            found[path.split("/")[0]] += 1
        return found

    def make_archive(self):
        """A small archive: its path, and its files with their contents."""
        path = os.path.join(self.aside, "small.tar")
        contents = {f"top/{d}/f{i}": bytes([d, i]) * (100 * i) for d in range(3) for i in range(4)}
        with tarfile.open(path, "w") as tar:
            for name in ["top"] + [f"top/{d}" for d in range(3)]:
                info = tarfile.TarInfo(name)
                info.type, info.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(info)
            for name, data in contents.items():
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
        return path, contents

    def check_report(self, report, processes, first, tests):
        """Each figure against the others; returns the rows of the tests."""
        rows = section(report, ["Test", "Num_proc"], 5)
        details = section(report, ["PROCESS", "DETAILS"], 5)
        self.assertEqual([row[0] for row in rows], [NAMES[test] for test in tests])
        for name, count, files, elapsed, rate in rows:
            mine = [row for row in details if row[0] == name]
            who = [processes - 1] if name == "Create-A" else list(range(first, processes))
            self.assertEqual([int(row[1]) for row in mine], who)
            self.assertEqual(int(count), len(who))
            self.assertEqual(int(files), sum(int(row[2]) for row in mine))
            self.assertAlmostEqual(float(rate), int(files) / float(elapsed), delta=float(rate) * 0.001 + 0.01)
            for row in mine:
                self.assertLessEqual(float(row[3]), float(elapsed))
                self.assertAlmostEqual(float(row[4]), int(row[2]) / float(row[3]), delta=float(row[4]) * 0.001 + 0.01)
        return rows

    @every_mpi
    def test_it_leaves_exactly_what_it_says(self):
        for letters, processes, more, files in (("CSUA", 3, [], 101), ("CSUA", 1, [], 40), ("CA", 4, ["-0"], 50),
                                                ("S", 2, [], 7), ("U", 3, ["-0"], 3)):
            with self.subTest(letters=letters, processes=processes, more=more):
                self.setUp()
                report = self.good(mpi(processes, METABENCH, "-" + letters, "-c", files, "-f", "30", "-b", "100",
                                       "-w", self.dir, *more)).out
                first = 0 if processes == 1 or more else 1
                expected = expected_counts(letters, files, processes - first)
                self.assertEqual(self.counts(), expected)
                left = {name: int(count) for name, count in section(report, ["LEFT", "BEHIND"], 2)}
                self.assertEqual(left, expected)
                self.check_report(report, processes, first, [t for letter in letters for t in GROUPS[letter]])
                self.check_sizes(files, processes - first)
                self.doCleanups()

    def check_sizes(self, files, participants):
        """Only append writes; in one directory each process appends to its own share, and to the rest nobody."""
        shared = []
        for path, size in self.files().items():
            if path.startswith("append_b"):
                shared.append(size)
            else:
                self.assertEqual(size, 100 if path.startswith("append_a") else 0, path)
        if shared:
            share = files // participants * participants
            self.assertEqual(sorted(shared), [0] * (files - share) + [100] * share)

    @every_mpi
    def test_batches(self):
        report = self.good(mpi(2, METABENCH, "-C", "-c", "101", "-f", "30", "-w", self.dir)).out
        batches = section(report, ["CREATE-A", "BATCHES"], 4)
        self.assertEqual([(int(row[0]), int(row[1])) for row in batches], [(0, 30), (30, 30), (60, 30), (90, 11)])
        whole = float(section(report, ["PROCESS", "DETAILS"], 5)[0][3])
        for _, files, seconds, rate in batches:
            self.assertGreater(float(seconds), 0)
            self.assertAlmostEqual(float(rate), int(files) / float(seconds), delta=float(rate) * 0.001 + 0.01)
        self.assertLessEqual(sum(float(row[2]) for row in batches), whole + 1e-6)

    def test_utime_changes_the_times(self):
        self.good(mpi(3, METABENCH, "-U", "-c", "600", "-w", self.dir))
        # Process 0 makes all files before the others change times: the last directory was complete by then.
        made = max(os.stat(os.path.join(self.dir, name)).st_mtime_ns for name in ("utime_a.0", "utime_a.1"))
        for name in ("utime_a.0", "utime_a.1"):
            for file in os.scandir(os.path.join(self.dir, name)):
                status = file.stat()
                self.assertGreaterEqual(min(status.st_mtime_ns, status.st_atime_ns), made)

    def test_cleanup(self):
        path, contents = self.make_archive()
        for more, participants in (([], 2), (["-0"], 3)):
            report = self.good(mpi(3, METABENCH, "-CSUATk", "-c", "31", "-w", self.dir, "--tar", path, *more)).out
            self.assertEqual(os.listdir(self.dir), [])
            removed = {row[0]: int(row[1]) for row in section(report, ["CLEAN-UP"], 4)}
            counts = expected_counts("CSUA", 31, participants)
            expected = {NAMES[test]: 0 for test in NAMES}
            expected["Untar"] = participants * (1 + 4 + len(contents))
            for name, files in counts.items():
                expected[NAMES[name.split(".")[0]]] += 1 + files
            self.assertEqual(removed, expected)

    @every_mpi
    def test_untar_of_a_given_archive(self):
        path, contents = self.make_archive()
        # The archive's path is seen from where the job starts.
        report = self.good(mpi(3, METABENCH, "-T", "-w", self.dir, "--tar", os.path.basename(path)),
                           cwd=self.aside).out
        self.assertEqual(sorted(os.listdir(self.dir)), ["untar.0", "untar.1"])
        for place in range(2):
            for name, data in contents.items():
                with open(f"{self.dir}/untar.{place}/{name}", "rb") as file:
                    self.assertEqual(file.read(), data)
        self.assertEqual(len(self.files()), 2 * len(contents))
        rows = self.check_report(report, 3, 1, ["untar"])
        self.assertEqual(rows[0][2], str(2 * len(contents)))
        self.assertIn(f"{len(contents)} files, 4 directories", report)

    def test_untar_of_its_own_archive(self):
        report = self.good(mpi(2, METABENCH, "-T", "-w", self.dir, "--local", self.aside)).out
        self.assertIn("9188 files, 459 directories", report)
        sizes = self.files().values()
        directories = sum(len(names) for _, names, _ in os.walk(os.path.join(self.dir, "untar.0")))
        # 75.8 MB of 2^20 bytes.
        self.assertEqual((len(sizes), directories, sum(sizes)), (9188, 459, int(75.8 * 2**20)))
        self.assertGreater(max(sizes), 3 * sum(sizes) / len(sizes))
        self.assertEqual(os.listdir(self.aside), [])

    def test_the_result_of_json_is_that_of_the_report(self):
        archive, contents = self.make_archive()
        path = os.path.join(self.aside, "result.json")
        words = [METABENCH, "-CUT", "-c", "101", "-f", "30", "-k", "-w", self.dir, "--tar", archive, "--json", path]
        report = self.good(mpi(3, *words)).out
        with open(path, encoding="ascii") as file:
            whole = json.load(file)
        self.assertEqual((whole["program"], whole["command"][1:]), ("metabench", words[1:]))
        self.assertEqual({name: whole["options"][name] for name in "CSUATk0cfb"},
                         {"C": True, "S": False, "U": True, "A": False, "T": True, "k": True, "0": False, "c": 101, "f": 30,
                          "b": 16384})
        self.assertEqual((whole["participants"], whole["files_per_process"], whole["directory"]), (2, 50, self.dir))
        self.assertEqual((whole["archive_files"], whole["archive_directories"]), (len(contents), 4))
        for rows, own in ((section(report, ["CREATE-A", "BATCHES"], 4), whole["batches"]),):
            self.assertEqual([(int(row[0]), int(row[1])) for row in rows], [(one["first"], one["files"]) for one in own])
            for row, one in zip(rows, own, strict=True):
                self.assertAlmostEqual(float(row[2]), one["seconds"], delta=1e-9)
                self.assertAlmostEqual(float(row[3]), one["files_per_second"], delta=0.01)
        tests = self.check_report(report, 3, 1, ["create_a", "create_b", "create_c", "utime_a", "utime_b", "untar"])
        removed = section(report, ["CLEAN-UP"], 4)
        for row, cleaned, one in zip(tests, removed, whole["results"], strict=True):
            self.assertEqual((row[0], int(row[1]), int(row[2])), (one["test"], one["processes_taking_part"], one["files"]))
            self.assertAlmostEqual(float(row[3]), one["elapsed_seconds"], delta=1e-9)
            self.assertAlmostEqual(float(row[4]), one["files_per_second"], delta=0.01)
            self.assertEqual((cleaned[0], int(cleaned[1])), (one["test"], one["names_removed"]))
            self.assertEqual(sum(process["files"] for process in one["processes"]), one["files"])
            self.assertEqual(len(one["processes"]), one["processes_taking_part"])
            # The longest may be that of process 0, which only waits.
            self.assertLessEqual(max(process["elapsed_seconds"] for process in one["processes"]), one["elapsed_seconds"])

    def test_no_result_of_a_run_that_fails(self):
        path = os.path.join(self.aside, "result.json")
        words = [METABENCH, "-C", "-c", "10", "-w", self.dir, "--json", path]
        os.mkdir(os.path.join(self.dir, "create_c"))
        self.bad(mpi(3, *words), "create_c: File exists")
        os.rmdir(os.path.join(self.dir, "create_c"))
        self.assertEqual((os.listdir(self.dir), glob.glob(path + "*")), ([], []))
        # Nor if it ran well, and the report cannot be written.
        self.bad(["sh", "-c", 'exec "$0" "$@" >/dev/full', *words], "cannot write the report to standard output: No space")
        self.assertEqual((os.listdir(self.dir), glob.glob(path + "*")), ([], []))

    def test_a_named_report(self):
        base = os.path.join(self.aside, "meta")
        job = self.good(mpi(2, METABENCH, "-S", "-c", "10", "-w", self.dir, "-o", base))
        self.assertEqual(job.out, "")
        names = glob.glob(base + "*")
        self.assertEqual(len(names), 1)
        self.assertRegex(names[0], r"/meta_\d{8}_\d{6}$")
        with open(names[0], encoding="ascii") as file:
            self.check_report(file.read(), 2, 1, ["stat_a", "stat_b"])

    def test_help_names_every_option(self):
        text = self.good(mpi(2, METABENCH, "--help")).out
        for option in "-C -S -U -A -T -c -b -f -o -w -k -0 --tar --local --json --help".split():
            self.assertRegex(text, rf"\n  {option} ")
        self.assertEqual(text.count("Measures metadata"), 1)


class Errors(Case):
    def test_command_lines_that_make_no_sense(self):
        for options, pattern in (("", "no test is asked for"), ("-k", "no test is asked for"), ("-C -c 0", "-c 0"),
                                 ("-C -c 1K", "-c 1K"), ("-C -c -5", "-c -5"), ("-C -f 0", "-f 0"), ("-A -b 0", "-b 0"),
                                 ("-A -b 1X", "-b 1X: the size"), ("-C --tar x", "--tar is for"), ("-C -z", "option -z"),
                                 ("-C -w", "-w needs a value"), ("-T --tar", "--tar needs a value"),
                                 ("-C --fast", "unknown option"), ("-C more", "more: not an option"),
                                 ("-C -c 1000000000 -f 1", "more than 1000000 batches")):
            job = self.bad([METABENCH, "-w", self.dir, *options.split()], "^metabench: process 0: .*" + pattern)
            self.assertEqual((job.code, job.out), (2, ""))
        job = self.bad(mpi(3, METABENCH, "-C", "-c", "x"), "^metabench: process 0: -c x")
        self.assertEqual(job.code, 2)

    def test_what_does_not_fit(self):
        archive = os.path.join(self.aside, "bad.tar")
        with open(archive, "wb") as file:
            file.write(b"no archive" * 1000)
        for options, pattern in ((["-C", "-c", "1"], "-c 1: fewer files than the 2 processes that take part"),
                                 (["-C", "-w", self.dir + "/none"], "No such file"),
                                 (["-C", "-w", archive], "[nN]ot a directory"),
                                 (["-T", "--tar", self.dir + "/none.tar"], "none.tar: No such file"),
                                 (["-T", "--tar", archive], "tar -tf .* fails: tar: "),
                                 (["-T", "--local", self.dir + "/none"], "cannot make an archive"),
                                 (["-C", "-o", "/nonexistent/report"], "cannot make the report")):
            self.bad(mpi(3, METABENCH, "-w", self.dir, *options), "^metabench: process [01]: .*" + pattern)
            self.assertEqual(os.listdir(self.dir), [])

    def test_what_is_there_already_is_left_alone(self):
        for name in ("create_c", "stat_a.1"):
            self.setUp()
            os.mkdir(os.path.join(self.dir, name))
            with open(os.path.join(self.dir, name, "precious"), "wb"):
                pass
            self.bad(mpi(3, METABENCH, "-CS", "-c", "10", "-w", self.dir),
                     f"process 0: cannot make the directory .*/{name}: File exists")
            self.assertEqual(self.files(), {f"{name}/precious": 0})
            self.assertEqual(os.listdir(self.dir), [name])
            self.doCleanups()

    @every_mpi
    def test_a_full_file_system(self):
        # Inodes for Create-A and for some files of Create-B; bytes for some of what is appended.
        listing = os.path.join(self.aside, "listing")
        for letters, limit, where in (("C", "nr_inodes=150", "process [12]: cannot create .*/create_b.[01]/f"),
                                      ("A", "size=1m,nr_inodes=1000", "process [12]: cannot append to .*/append_a.[01]/f")):
            shell = f'{shlex.join(mpi(3))} "$0" "$@"; code=$?; ls "{self.dir}" >"{listing}"; exit $code'
            words = ["sh", "-c", shell, METABENCH, "-" + letters, "-c", "100", "-b", "16K", "-w", self.dir]
            self.bad(in_own_mounts(f"mount -t tmpfs -o {limit} none '{self.dir}'", words),
                     f"^metabench: {where}.*: No space left on device")
            self.assertEqual(os.path.getsize(listing), 0)

    @every_mpi
    def test_a_process_that_does_not_see_the_directories(self):
        unshare = "unshare --mount" if os.geteuid() == 0 else "unshare --mount --map-root-user"
        shell = f"""exec {unshare} sh -c 'mount -t tmpfs none "{self.dir}" && exec "$0" "$@"' "$0" "$@" """
        self.bad(mpi_with_first(shell, 3, METABENCH, "-S", "-c", "10", "-w", self.dir),
                 "process 1: cannot enter .*/stat_a.0: No such file")
        self.assertEqual(os.listdir(self.dir), [])

    @every_mpi
    def test_nothing_is_left_when_a_process_is_killed(self):
        words = [METABENCH, "-C", "-c", "100000000", "-f", "1000", "-w", self.dir, "-o", os.path.join(self.dir, "report")]
        self.nothing_left_when_killed(3, words, lambda: len(self.files()) > 100, "files of Create-A")

    @every_mpi
    def test_processes_that_were_started_differently(self):
        words = [*MPIEXEC, "-n", "1", METABENCH, "-C", ":", "-n", "2", METABENCH, "-S"]
        job = self.bad(words, re.escape("process 1: the command line differs from that of process 0"), cwd=self.dir)
        self.assertEqual(job.code, 2)
