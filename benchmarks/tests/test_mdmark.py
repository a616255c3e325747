"""mdmark: one seed makes one tree, its distributions, what the tests count and leave, and failures."""

import collections
import hashlib
import json
import math
import os
import re
import shlex
import signal

from harness import Case, end, every_mpi, finish, in_own_mounts, launch, mpi, mpi_with_first, program, wait_until

MDMARK = program("mdmark")
TREE = "mdmark.tree"

PROFILE = """\
# A comment, and rows in any order.
directories 0 3 4 1
files 0 0 2 1
files 1 0 0 1
files 1 5 20 3
directories 1 0 0 1
directories 1 2 2 1
files 2 1 1 1
files 2 2 3 1
directories 2 0 0 1     # no deeper one
sizes 0 0 2
sizes 1 1000 5
sizes 1001 9000 1
"""
# Levels 0 to 2 of one directory, many and very many; sizes of very different weights.
WIDE = """\
files 0 0 0 1
directories 0 2000 2000 1
files 1 0 0 40
files 1 1 1 30
files 1 2 9 20
files 1 10 40 10
directories 1 0 0 50
directories 1 1 3 35
directories 1 4 4 15
files 2 0 4 1
directories 2 0 0 1
sizes 0 0 10
sizes 1 15 20
sizes 16 4095 60
sizes 4096 65535 10
"""


def rows_of(text):
    """A file of distributions: (what, level) -> [(first, last, weight)]."""
    rows = collections.defaultdict(list)
    for line in text.splitlines():
        words = line.split("#")[0].split()
        if not words:
            continue
        numbers = [int(word) for word in words[1:]]
        key = (words[0], None) if words[0] == "sizes" else (words[0], numbers.pop(0))
        rows[key].append(tuple(numbers))
    return rows


def distance(values, rows):
    """The largest difference between the share of values up to x, and what the rows say (Kolmogorov, Smirnov)."""
    total = sum(weight for _, _, weight in rows)
    counts = collections.Counter(values)
    seen, largest = 0, 0.0
    for value in sorted(set(counts) | {last for _, last, _ in rows}):
        seen += counts.get(value, 0)
        said = sum(weight * min(1, max(0, value - first + 1) / (last - first + 1)) for first, last, weight in rows)
        largest = max(largest, abs(seen / len(values) - said / total))
    return largest


def table(report, title):
    """Rows below a line that begins with `title` and a rule."""
    lines = report.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith(title))
    at = next(i for i in range(at, len(lines)) if lines[i].startswith("---")) + 1
    rows = []
    while at < len(lines) and lines[at].strip():
        rows.append(lines[at].split())
        at += 1
    return rows


def raw(report, title):
    """Rows below a title and a comment."""
    lines = report.splitlines()
    at = lines.index(title) + 2
    rows = []
    while at < len(lines) and lines[at].strip():
        rows.append(lines[at].split())
        at += 1
    return rows


class Mdmark(Case):
    def profile(self, text=PROFILE):
        path = os.path.join(self.aside, "profile")
        with open(path, "w", encoding="ascii") as file:
            file.write(text)
        return path

    def tree(self):
        """Everything in the tree: path -> None for a directory, the contents' hash for a file."""
        found = {}
        top = os.path.join(self.dir, TREE)
        for place, directories, files in os.walk(top):
            for name in directories:
                found[os.path.relpath(os.path.join(place, name), top)] = None
            for name in files:
                path = os.path.join(place, name)
                with open(path, "rb") as file:
                    data = file.read()
                found[os.path.relpath(path, top)] = (len(data), hashlib.sha256(data).hexdigest())
        return found

    def plan(self, *options):
        """--plan: {directory: (level, files)}, {file: size}."""
        directories, files = {}, {}
        for line in self.good([MDMARK, "--plan", *[str(option) for option in options]]).out.splitlines():
            words = line.split()
            if words[0] == "d":
                directories[words[3]] = (int(words[1]), int(words[2]))
            else:
                files[words[2]] = int(words[1])
        return directories, files

    def make(self, processes, *options):
        return self.good(mpi(processes, MDMARK, "-w", self.dir, "-K", *options)).out

    def check_report(self, report, result=None):
        """Each figure against the raw times, and against the JSON of the same run."""
        times = raw(report, "RAW TIMES")
        for row in table(report, "Test "):
            name, files, directories, operations, elapsed, rate, spread = row
            mine = [[float(word) for word in words[1:]] for words in times if words[0] == name]
            self.assertEqual([int(words[0]) for words in mine], list(range(len(mine))))
            self.assertEqual([int(files), int(directories), int(operations)],
                             [sum(words[column] for words in mine) for column in (1, 2, 4)])
            longest = max(words[7] for words in mine)
            seconds = [words[5] for words in mine]
            self.assertAlmostEqual(float(elapsed), longest, delta=1e-6)
            self.assertAlmostEqual(float(rate), int(operations) / longest, delta=float(rate) * 1e-4 + 0.01)
            self.assertAlmostEqual(float(spread), 100 * (max(seconds) - min(seconds)) / longest, delta=0.01)
            for words in mine:
                self.assertLessEqual(words[5], words[7] + 1e-6)
        if result is None:
            return
        self.assertEqual([test["test"] for test in result["results"]], [row[0] for row in table(report, "Test ")])
        flat = [[test["test"], str(process["process"]), *(process[name] for name in (
            "files", "directories", "bytes", "operations", "seconds", "system_seconds", "elapsed_seconds"))]
                for test in result["results"] for process in test["processes"]]
        for words, numbers in zip(times, flat, strict=True):
            self.assertEqual(words[:2], numbers[:2])
            for word, number in zip(words[2:], numbers[2:], strict=True):
                self.assertAlmostEqual(float(word), number, delta=1e-6)

    @every_mpi
    def test_one_seed_makes_one_tree(self):
        path = self.profile()
        trees = []
        for processes in (1, 4):
            self.make(processes, "-p", path, "-s", 7)
            trees.append(self.tree())
            self.good(mpi(2, MDMARK, "-w", self.dir, "-p", path, "-s", 7, "-E", "-D"))
            self.assertEqual(os.listdir(self.dir), [])
        self.assertEqual(trees[0], trees[1])
        self.assertGreater(len(trees[0]), 20)
        directories, files = self.plan("-p", path, "-s", 7)
        self.assertEqual({name: size for name, size in files.items()},
                         {name: what[0] for name, what in trees[0].items() if what is not None})
        self.assertEqual(set(directories) - {"."}, {name for name, what in trees[0].items() if what is None})
        # Other seeds, other names; nothing of them is the same.
        self.assertEqual(set(self.plan("-p", path, "-s", 8)[1]) & set(files), set())

    def test_names_and_contents_have_no_pattern(self):
        self.make(2, "-p", self.profile(), "-s", 3)
        tree = self.tree()
        hashes = [what[1] for what in tree.values() if what is not None and what[0] > 8]
        self.assertEqual(len(set(hashes)), len(hashes))
        names = {os.path.basename(name) for name in tree}
        self.assertGreater(len(names), 0.95 * len(tree))
        self.assertGreater(len({len(name) for name in names}), 8)

    def test_the_tree_has_the_distributions_of_the_file(self):
        # 1.63 / sqrt(n): the distance that one in a hundred samples of n values exceeds. The seed is fixed.
        path = self.profile(WIDE)
        rows = rows_of(WIDE)
        directories, files = self.plan("-p", path, "-s", 11, "-e", 10**6, "-b", "1000G")
        children = collections.Counter(os.path.dirname(name) or "." for name in directories if name != ".")
        self.assertEqual(directories["."], (0, 0))
        for level in (1, 2):
            here = [name for name, (own, _) in directories.items() if own == level]
            self.assertGreater(len(here), 1000)
            for what, values in (("files", [directories[name][1] for name in here]),
                                 ("directories", [children[name] for name in here])):
                self.assertLess(distance(values, rows[what, level]), 1.63 / math.sqrt(len(values)), (what, level))
        self.assertLess(distance(list(files.values()), rows["sizes", None]), 1.63 / math.sqrt(len(files)))
        # The test can fail: another distribution is farther away than that.
        other = [(first, last, weight + 40 * (first == 0)) for first, last, weight in rows["sizes", None]]
        self.assertGreater(distance(list(files.values()), other), 1.63 / math.sqrt(len(files)))

    def test_limits(self):
        path = self.profile(WIDE)
        for options, entries, size in ((["-e", 500], 500, None), (["-e", 10**6, "-b", "3M"], None, 3 << 20),
                                       (["-e", 300, "-f", "100"], 300, None)):
            report = self.make(2, "-p", path, *options)
            tree = self.tree()
            sizes = [what[0] for what in tree.values() if what is not None]
            if entries is not None:
                self.assertEqual(len(tree), entries)
            if size is not None:
                self.assertLessEqual(sum(sizes), size)
                self.assertGreater(sum(sizes), size - 65536)
            if "-f" in options:
                self.assertEqual(max(sizes), 100)
            self.assertRegex(report, "Note: -[eb] ended the tree")
            self.good([MDMARK, "-w", self.dir, "-p", path, *[str(option) for option in options], "-E", "-D"])
        directories, files = self.plan("-p", path, "-l", 2, "-e", 10**6)
        self.assertEqual({level for level, _ in directories.values()}, {0, 1})
        self.assertTrue(all(name.count("/") == 1 for name in files))

    def test_a_file_without_data(self):
        self.make(2, "-p", self.profile(), "-s", 7, "-z")
        for place, _, names in os.walk(os.path.join(self.dir, TREE)):
            for name in names:
                self.assertEqual(os.stat(os.path.join(place, name)).st_blocks, 0)
        self.good([MDMARK, "-w", self.dir, "-p", self.profile(), "-s", "7", "-E", "-SD"])

    def test_measure(self):
        # 3 levels; every directory, file and size is known.
        shape = {"": [0, 5], "a": [15], "b": [16, 17, 19, 20], "b/c": [10**6, 3], "b/d": [], "b/e": [1] * 40}
        for directory, sizes in shape.items():
            os.makedirs(os.path.join(self.dir, directory), exist_ok=True)
            for index, size in enumerate(sizes):
                with open(os.path.join(self.dir, directory, f"f{index}"), "wb") as file:
                    file.truncate(size)
        expected = {("files", 0): [2], ("directories", 0): [2], ("files", 1): [1, 4], ("directories", 1): [0, 3],
                    ("files", 2): [2, 0, 40], ("directories", 2): [0, 0, 0],
                    ("sizes", None): [size for sizes in shape.values() for size in sizes]}
        for processes in (1, 3):
            out = os.path.join(self.aside, f"out.{processes}")
            report = self.good(mpi(processes, MDMARK, "--measure", self.dir, "--out", out)).out
            self.check_report(report)
            with open(out, encoding="ascii") as file:
                rows = rows_of(file.read())
            self.assertEqual(set(rows), set(expected))
            for key, values in expected.items():
                for first, last, weight in rows[key]:
                    self.assertEqual(sum(first <= value <= last for value in values), weight, key)
                    # A bin is one number, or no wider than a quarter of its power of two.
                    self.assertTrue(first == last < 16 or 4 * (last - first + 1) <= first & -first or first >= 16)
                    self.assertLessEqual(last - first, first / 4)
                self.assertEqual(sum(weight for _, _, weight in rows[key]), len(values), key)
        # What is there is left alone, and what was measured can be made.
        self.bad([MDMARK, "--measure", self.dir, "--out", out], "cannot make the file .*: File exists")
        self.assertEqual(len(self.plan("-p", out)[0]), len(shape))

    def test_what_was_made_measures_as_what_it_was_made_from(self):
        path = self.profile(PROFILE)
        self.make(1, "-p", path, "-s", 5)
        first, second = os.path.join(self.aside, "first"), os.path.join(self.aside, "second")
        self.good(mpi(1, MDMARK, "--measure", os.path.join(self.dir, TREE), "--out", first))
        self.good(mpi(4, MDMARK, "--measure", os.path.join(self.dir, TREE), "--out", second))
        with open(first, encoding="ascii") as one, open(second, encoding="ascii") as other:
            text = one.read()
            self.assertEqual(text, other.read())
        allowed = rows_of(PROFILE)
        for key, rows in rows_of(text).items():
            for low, high, _ in rows:
                self.assertTrue(any(low <= last and high >= first for first, last, _ in allowed[key]), (key, low))

    @every_mpi
    def test_the_tests_count_what_is_there(self):
        path = self.profile()
        for processes in (1, 3):
            out = os.path.join(self.aside, f"json.{processes}")
            report = self.good(mpi(processes, MDMARK, "-w", self.dir, "-p", path, "-SUHD", "--json", out)).out
            with open(out, encoding="utf-8") as file:
                result = json.load(file)
            self.check_report(report, result)
            directories, files = self.plan("-p", path)
            entries = len(directories) - 1 + len(files)
            by_test = {row[0]: [int(word) for word in row[1:4]] for row in table(report, "Test ")}
            counts = [len(files), len(directories) - 1]
            self.assertEqual(by_test, {"Make": [*counts, entries], "Scan": [*counts, entries],
                                       "Update": [*counts, 2 * entries], "Statistics": [*counts, entries],
                                       "Delete": [*counts, 2 * entries]})
            self.assertEqual(os.listdir(self.dir), [])
            self.assertEqual(result["tree"]["bytes"], sum(files.values()))
            self.check_statistics(report, result, directories)
            self.assertEqual((result["program"], result["options"]["s"]), ("mdmark", 1))

    def check_statistics(self, report, result, directories):
        children = collections.Counter(os.path.dirname(name) or "." for name in directories if name != ".")
        rows = {row[0]: [int(word) for word in row[1:]] for row in table(report, "ENTRIES IN A DIRECTORY")}
        expected = collections.defaultdict(list)
        for name, (level, files) in directories.items():
            expected[str(level)].append(files + children[name])
            expected["all"].append(files + children[name])
        for level, values in expected.items():
            buckets = [0] * (len(rows[level]) - 1)
            for value in values:
                buckets[value.bit_length()] += 1
            self.assertEqual(rows[level], [len(values), *buckets])
        self.assertEqual(set(rows), set(expected))
        for level in result["statistics"]["levels"]:
            values = expected[str(level["level"])]
            for row in level["entries"]:
                self.assertEqual(sum(row["first"] <= value <= row["last"] for value in values), row["count"])

    def test_update_sets_the_times(self):
        path = self.profile()
        self.make(2, "-p", path)
        top = os.path.join(self.dir, TREE)
        names = [os.path.join(top, name) for name in self.tree()]
        for name in names:
            os.utime(name, (1000, 1000))
        self.good(mpi(2, MDMARK, "-w", self.dir, "-p", path, "-E", "-S"))
        self.assertEqual({os.stat(name).st_mtime for name in names}, {1000})
        self.good(mpi(2, MDMARK, "-w", self.dir, "-p", path, "-E", "-U"))
        for name in names:
            status = os.stat(name)
            self.assertGreater(min(status.st_mtime, status.st_atime), 1000, name)

    def test_a_scan_finds_what_is_wrong(self):
        path = self.profile()
        words = mpi(2, MDMARK, "-w", self.dir, "-p", path, "-E")
        self.make(2, "-p", path)
        top = os.path.join(self.dir, TREE)
        file = next(os.path.join(top, name) for name, what in self.tree().items() if what is not None and what[0] > 1)
        size = os.path.getsize(file)
        os.truncate(file, size - 1)
        self.bad([*words, "-S"], "process 0: Scan found .* files, .* bytes in .*; the tree of these options has")
        os.truncate(file, size)
        with open(os.path.join(top, "more"), "wb"):
            pass
        self.bad([*words, "-U"], "Update found")
        os.unlink(os.path.join(top, "more"))
        self.good([*words, "-S"])
        os.unlink(file)
        self.bad([*words, "-H"], "Statistics found")
        # What a failed run did not make it does not remove.
        self.assertTrue(os.path.isdir(top))

    @every_mpi
    def test_mix(self):
        path, out = self.profile(), os.path.join(self.aside, "json")
        self.make(2, "-p", path)
        before = self.tree()
        report = self.good(mpi(2, MDMARK, "-w", self.dir, "-p", path, "-E", "-M", 1, "-n", 3, "-S", "--json", out)).out
        self.assertEqual(self.tree(), before)
        with open(out, encoding="utf-8") as file:
            result = json.load(file)
        self.check_report(report, result)
        calls = raw(report, "RAW CALLS")
        self.assertEqual([row[:2] for row in calls], [[str(p), str(s)] for p in range(2) for s in range(3)])
        sums = [sum(int(row[column]) for row in calls) for column in range(3, 12)]
        rows = table(report, "MIX CALLS")
        self.assertEqual([int(row[1]) for row in rows], sums)
        names = [row[0] for row in rows]
        counts = dict(zip(names, sums, strict=True))
        mixed = next(row for row in table(report, "Test ") if row[0] == "Mix")
        self.assertEqual(int(mixed[3]), sum(sums))
        self.assertTrue(all(count > 0 for count in sums), counts)
        self.assertTrue(all(1 <= float(row[2]) < 30 for row in calls), calls)
        # As the weights say, within a tenth or five times what chance does to so many; what is down must come up.
        whole = sum(sums) - counts["readdir"]
        self.assertAlmostEqual(counts["stat"] / whole, 0.5, delta=max(0.05, 5 * (0.5 * 0.5 / whole) ** 0.5))
        self.assertAlmostEqual(counts["utime"] / whole, 0.16, delta=max(0.016, 5 * (0.16 * 0.84 / whole) ** 0.5))
        self.assertEqual(counts["readdir"], counts["chdir_up"] + counts["chdir_down"] + 6)
        self.assertLessEqual(counts["chdir_up"], counts["chdir_down"])
        self.assertLessEqual(counts["unlink"], counts["create"])
        test = next(test for test in result["results"] if test["test"] == "Mix")
        self.assertEqual([[str(part["calls"][name]) for name in names] for part in test["subprocesses"]],
                         [row[3:] for row in calls])

    def test_help_names_every_option(self):
        text = self.good(mpi(2, MDMARK, "--help")).out
        options = "-w -p -s -e -b -f -l -z -E -S -U -H -M -n -D -K -o --json --measure --out --plan --builtin --help"
        for option in options.split():
            self.assertRegex(text, rf"\n  {option} ")
        self.assertEqual(text.count("Measures metadata"), 1)

    def test_the_built_in_distributions_can_be_had_as_a_file(self):
        path = self.profile(self.good([MDMARK, "--builtin"]).out)
        self.assertEqual(self.plan("-e", 3000), self.plan("-e", 3000, "-p", path))


class Errors(Case):
    def test_command_lines_that_make_no_sense(self):
        for options, pattern in (("-e 0", "-e 0: not a number from 1"), ("-e x", "-e x"), ("-s -1", "-s -1"),
                                 ("-b 1Q", "-b 1Q: the size"), ("-f x", "-f x: the size"), ("-l 0", "-l 0"),
                                 ("-l 65", "-l 65: not a number from 1 to 64"), ("-M 0", "-M 0"), ("-M", "-M needs"),
                                 ("-n 2", "-n is for the mix"), ("-M 1 -n 0", "-n 0"), ("-M 1 -n 9999", "-n 9999"),
                                 ("-E", "-E makes no tree"), ("-D -K", "-D and -K contradict"),
                                 ("--measure .", "--measure and --out go together"),
                                 ("--out x", "--measure and --out go together"),
                                 ("--measure . --out x -S", "--measure only measures"),
                                 ("--measure", "--measure needs a value"), ("-z9", "unknown option -9"),
                                 ("--fast", "unknown option"), ("more", "more: not an option")):
            job = self.bad([MDMARK, "-w", self.dir, *options.split()], "^mdmark: process 0: .*" + pattern)
            self.assertEqual((job.code, job.out), (2, ""))
        self.assertEqual(self.bad(mpi(3, MDMARK, "-e", "x"), "^mdmark: process 0: -e x").code, 2)

    def test_files_of_distributions_that_make_no_sense(self):
        path = os.path.join(self.aside, "profile")
        for text, pattern in (("", "no distribution of files"), ("files 0 1 1 1\nfiels 0 1 1 1\n", "line 2: it begins with"),
                              ("files 0 2 1 1\n", "line 1: FIRST is larger"), ("files 0 1 1\n", "line 1: .*LEVEL FIRST"),
                              ("sizes 0 1 1 1\n", "line 1: sizes is followed"), ("files 0 1 1 x\n", "line 1: "),
                              ("files 32 1 1 1\n", "levels are 0 to 31"), ("files 0 1 1 -1\n", "line 1"),
                              ("files 0 1 1 1\nsizes 0 0 1\n", "files or directories of level 0 are missing"),
                              ("files 0 1 1 1\ndirectories 0 1 1 1\n", "no distribution of sizes"),
                              ("files 0 1 1 0\ndirectories 0 1 1 1\nsizes 0 0 1", "of level 0 are missing"),
                              ("files 0 0 0 1\ndirectories 0 0 0 1\nsizes 0 0 1\n", "makes an empty tree"),
                              ("files 0 0 9999999999 1\n", "LAST is larger"), ("a\0b", "this is no text")):
            with open(path, "w", encoding="ascii") as file:
                file.write(text)
            self.bad([MDMARK, "-w", self.dir, "-p", path], "^mdmark: process 0: .*" + pattern)
        self.bad(mpi(3, MDMARK, "-w", self.dir, "-p", path), "process 0: .*this is no text")
        self.bad(mpi(2, MDMARK, "-w", self.dir, "-p", path + ".none"), "process 0: cannot open .*: No such file")
        self.bad([MDMARK, "-w", self.dir, "-p", self.aside], "cannot read the distributions .*: Is a directory")
        self.assertEqual(os.listdir(self.dir), [])

    def test_what_does_not_fit(self):
        for options, pattern in ((["-w", self.dir + "/none"], "none: No such file"), (["-E", "-S"], "cannot open .*No such"),
                                 (["-b", "0"], "."), (["-o", "/nonexistent/report"], "cannot make the report"),
                                 (["--json", "/nonexistent/json"], "cannot make the result"),
                                 (["--measure", self.dir + "/none", "--out", self.aside + "/x"], "No such file")):
            if options[0] == "-b":
                self.good(mpi(2, MDMARK, "-w", self.dir, "-b", "0"))
                continue
            self.bad(mpi(2, MDMARK, "-w", self.dir, *options), "^mdmark: process [01]: .*" + pattern)
            self.assertEqual(os.listdir(self.dir), [])

    def test_what_is_there_already_is_left_alone(self):
        os.mkdir(os.path.join(self.dir, TREE))
        with open(os.path.join(self.dir, TREE, "precious"), "wb"):
            pass
        self.bad(mpi(2, MDMARK, "-w", self.dir), "cannot make the directory .*mdmark.tree: File exists")
        self.assertEqual(self.files(), {f"{TREE}/precious": 0})

    @every_mpi
    def test_a_full_file_system(self):
        listing = os.path.join(self.aside, "listing")
        shell = f'{shlex.join(mpi(3))} "$0" "$@"; code=$?; ls "{self.dir}" >"{listing}"; exit $code'
        for limit, what in (("nr_inodes=150", "cannot (create|make the directory)"), ("size=1m", "cannot write")):
            words = ["sh", "-c", shell, MDMARK, "-w", self.dir]
            self.bad(in_own_mounts(f"mount -t tmpfs -o {limit} none '{self.dir}'", words),
                     f"^mdmark: process [012]: {what} .*/{TREE}/.*: No space left on device")
            self.assertEqual(os.path.getsize(listing), 0)

    @every_mpi
    def test_a_process_that_does_not_see_the_tree(self):
        unshare = "unshare --mount" if os.geteuid() == 0 else "unshare --mount --map-root-user"
        shell = f"""exec {unshare} sh -c 'mount -t tmpfs none "{self.dir}" && exec "$0" "$@"' "$0" "$@" """
        self.bad(mpi_with_first(shell, 3, MDMARK, "-w", self.dir), "process 1: cannot open .*mdmark.tree: No such file")
        self.assertEqual(os.listdir(self.dir), [])

    def mix_children(self, top):
        """Subprocesses that are in the mix: they are somewhere in the tree."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/comm", encoding="ascii", errors="replace") as file:
                    if file.read().strip() != "mdmark":
                        continue
                if os.readlink(f"/proc/{pid}/cwd").startswith(top):
                    found.append(int(pid))
            except OSError:
                pass
        return sorted(found)

    @every_mpi
    def test_nothing_is_left_when_a_process_is_killed(self):
        words = [MDMARK, "-w", self.dir, "-e", 300, "-z", "-M", 3600, "-n", 2, "--json", self.dir + "/json"]
        self.nothing_left_when_killed(3, words, lambda: len(self.mix_children(self.dir + "/")) == 6, "the mix")
        wait_until(lambda: self.mix_children(self.dir) == [], "the subprocesses have ended")

    @every_mpi
    def test_a_subprocess_that_is_killed_ends_the_job(self):
        job = launch(mpi(2, MDMARK, "-w", self.dir, "-e", 300, "-z", "-M", 3600, "-n", 2))
        try:
            wait_until(lambda: len(self.mix_children(self.dir + "/")) == 4, "the mix")
            # Not the first one of its process.
            os.kill(self.mix_children(self.dir + "/")[-1], signal.SIGKILL)
            ended = finish(job)
        finally:
            end(job)
        self.assertEqual(ended.code, 1)
        self.assertTrue(re.fullmatch(r"mdmark: process [01]: mix: subprocess [01] ended with signal 9\n", ended.err), ended)
        self.assertEqual(os.listdir(self.dir), [])
