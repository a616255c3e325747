"""popio: who writes which elements where, that a wrong one is found, the figures, and failures."""

import array
import itertools
import json
import os
import re
import shlex

from harness import Case, every_mpi, in_own_mounts, mpi, mpi_with_first, program

POPIO = program("popio")
METHODS = ["collective", "independent", "pieces", "gather", "own"]
# Columns, rows, arrays; neither tiles nor grids divide them.
X, Y, A = 37, 23, 3
SMALL = ["-x", X, "-y", Y, "-a", A]


def read_doubles(path):
    values = array.array("d")
    with open(path, "rb") as file:
        values.frombytes(file.read())
    return values.tolist()


def owned(process, grid, tile):
    """Elements of an array that a process has, by the rule for one element: its tile's place modulo the grid."""
    (across, down), (width, height) = grid, tile
    return [y * X + x for y in range(Y) for x in range(X)
            if x // width % across == process % across and y // height % down == process // across]


def runs(offsets):
    """How many rows of numbers that follow one another."""
    return sum(1 for i, offset in enumerate(offsets) if i == 0 or offset != offsets[i - 1] + 1)


def rows_below(report, title, stop=""):
    lines = report.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith(title)) + 1
    rows = itertools.takewhile(lambda line: line.strip() != stop, lines[at:])
    return [row.split() for row in rows if not row.startswith(("#", "---"))]


class Popio(Case):
    def popio(self, processes, *options):
        return mpi(processes, POPIO, "-d", self.dir, *options)

    def path(self, method, process=None):
        return os.path.join(self.dir, f"popio.{method}" + ("" if process is None else f".{process}"))

    @every_mpi
    def test_each_element_is_where_it_must_be(self):
        for grid, tile in (((2, 2), (5, 4)), ((1, 3), (37, 2)), ((2, 1), None)):
            processes = grid[0] * grid[1]
            options = ["-g", f"{grid[0]}x{grid[1]}"]
            if tile is None:
                tile = (-(-X // grid[0]), -(-Y // grid[1]))
            else:
                options += ["-t", f"{tile[0]}x{tile[1]}"]
            report = self.good(self.popio(processes, *SMALL, *options, "-w")).out
            self.assertEqual(sorted(os.listdir(self.dir)),
                             sorted([f"popio.{m}" for m in METHODS[:4]] + [f"popio.own.{p}" for p in range(processes)]))
            whole = [float(i + 1) for i in range(A * X * Y)]
            for method in METHODS[:4]:
                self.assertEqual(read_doubles(self.path(method)), whole, method)
            shares = [owned(process, grid, tile) for process in range(processes)]
            for process, share in enumerate(shares):
                self.assertEqual(read_doubles(self.path("own", process)),
                                 [float(a * X * Y + offset + 1) for a in range(A) for offset in share])
            # Who wrote them, and in how many requests.
            for method, _, _, process, size, requests, *_ in rows_below(report, "RAW TIMES"):
                share = shares[int(process)]
                expected = {"Pieces": (A * 8 * len(share), A * runs(share)),
                            "Gather": (A * X * Y * 8, A) if process == "0" else (0, 0)}
                self.assertEqual((int(size), int(requests)), expected.get(method, (A * 8 * len(share), A)), method)
            self.good(self.popio(processes, *SMALL, *options, "-r", "-s"))
            for name in os.listdir(self.dir):
                os.unlink(os.path.join(self.dir, name))

    def test_any_number_of_processes_reads_what_others_wrote(self):
        self.good(self.popio(3, *SMALL, "-m", "collective,pieces", "-t", "4x5", "-w"))
        self.good(self.popio(2, *SMALL, "-m", "collective,pieces", "-g", "1x2", "-r"))

    def test_the_decomposition_of_the_document(self):
        # One tile for each process; 500 of them would have 144x120.
        for processes, grid, tile in ((2, "2x1", "1800x2400"), (6, "3x2", "1200x1200")):
            report = self.good(self.popio(processes, "-a", 1, "-m", "own", "-w")).out
            self.assertEqual(report.splitlines()[2].split()[4:6], [grid, tile])
            self.assertEqual({os.path.getsize(self.path("own", p)) for p in range(processes)},
                             {3600 * 2400 * 8 // processes})
            for process in range(processes):
                os.unlink(self.path("own", process))

    @every_mpi
    def test_a_process_without_a_tile(self):
        report = self.good(self.popio(3, "-x", 4, "-y", 4, "-g", "3x1", "-t", "2x4", "-s")).out
        self.assertIn("Note: 1 processes have no tile", report)
        self.assertEqual(os.listdir(self.dir), [])

    def test_a_flipped_byte_is_found(self):
        options = [*SMALL, "-t", "5x4", "-g", "2x1"]
        self.good(self.popio(2, *options, "-w"))
        # Array 1, row 7, column 12: tile 2 of its row, of process 0.
        row, column = 7, 12
        place = ((1 * Y + row) * X + column) * 8
        share = owned(0, (2, 1), (5, 4))
        places = {method: place for method in METHODS[:4]}
        places["own"] = 8 * (len(share) + share.index(row * X + column))
        for method, at in places.items():
            path = self.path(method, 0 if method == "own" else None)
            with open(path, "r+b") as file:
                file.seek(at + 6)
                byte = file.read(1)[0]
                file.seek(at + 6)
                file.write(bytes([byte ^ 16]))
            self.bad(self.popio(2, *options, "-r", "-m", method),
                     rf"^popio: process 0: {method.capitalize()}: array 1, row {row}, column {column} \(byte {at} of "
                     rf"{re.escape(path)}\) is .* and not {place // 8 + 1}; 1 elements of the tiles of process 0")
            self.assertTrue(os.path.exists(path))
        # Another process reads it with -s.
        for method in ("pieces", "gather", "own"):
            self.bad(self.popio(2, *options, "-r", "-s", "-m", method), "process 1: .* of the tiles of process 0 are")

    def test_a_file_that_is_too_short(self):
        self.good(self.popio(2, *SMALL, "-w"))
        for method in METHODS:
            path = self.path(method, 1 if method == "own" else None)
            os.truncate(path, os.path.getsize(path) - 8)
            # The last element of an array is of process 1.
            self.bad(self.popio(2, *SMALL, "-r", "-m", method), r"process [01]: .*(the file ends|are wrong)")
            os.unlink(path)
        for method in ("collective", "own"):
            self.bad(self.popio(2, *SMALL, "-r", "-m", method), f"process [01]: {method.capitalize()}: cannot open .*")

    def test_figures(self):
        out = os.path.join(self.aside, "json")
        report = self.good(self.popio(2, "-x", 360, "-y", 240, "-i", 3, "-S", "--json", out)).out
        self.assertEqual(os.listdir(self.dir), [])
        raw = rows_below(report, "RAW TIMES")
        with open(out, encoding="utf-8") as file:
            result = json.load(file)
        passes = rows_below(report, "Method")
        self.assertEqual([(row[0], row[1], row[2]) for row in passes],
                         [(m.capitalize(), what, str(i)) for m in METHODS for i in range(3) for what in ("Write", "Read")])
        rates = {}
        for row, test in zip(passes, result["results"], strict=True):
            mine = [[float(word) for word in words[3:]] for words in raw if words[:3] == row[:3]]
            self.assertEqual([words[0] for words in mine], [0, 1])
            size, elapsed = sum(words[1] for words in mine), max(words[8] for words in mine)
            self.assertEqual(size, 4 * 360 * 240 * 8)
            rate = size / 2**20 / elapsed
            rates.setdefault((row[0], row[1]), []).append(rate)
            seconds = [words[6] for words in mine]
            for word, value in zip(row[3:], [sum(words[2] for words in mine), rate, elapsed,
                                             *(max(words[c] for words in mine) for c in (3, 4, 5)),
                                             100 * (max(seconds) - min(seconds)) / elapsed], strict=True):
                self.assertAlmostEqual(float(word), value, delta=0.006 + 1e-6 * value)
            for words in mine:
                self.assertAlmostEqual(words[3] + words[4] + words[5], words[6], delta=1e-6)
                self.assertLessEqual(words[6], words[8])
            self.assertEqual((test["method"], test["what"]), (row[0].lower(), row[1].lower()))
            self.assertAlmostEqual(test["mib_per_second"], rate, delta=rate * 1e-6)
            self.assertEqual([process["bytes"] for process in test["processes"]], [words[1] for words in mine])
            self.assertAlmostEqual(max(p["elapsed_seconds"] for p in test["processes"]), elapsed, delta=1e-8)
        for method, what, mean, lowest, highest in rows_below(report, "RATES OF ALL ITERATIONS")[1:]:
            own = rates[method, what]
            for word, value in ((mean, sum(own) / 3), (lowest, min(own)), (highest, max(own))):
                self.assertAlmostEqual(float(word), value, delta=0.006)
        self.assertEqual((result["program"], result["options"]["columns"]), ("popio", 360))

    def test_help_names_every_option(self):
        text = self.good(mpi(2, POPIO, "--help")).out
        for option in "-d -x -y -a -g -t -m -i -w -r -s -S -K --hint -o --json --help".split():
            self.assertRegex(text, rf"\n  {option} ")
        for method in METHODS:
            self.assertRegex(text, rf"\n {{14}}{method} ")


class Errors(Case):
    def test_command_lines_that_make_no_sense(self):
        for options, pattern in (("-x 0", "-x 0: not a number"), ("-y x", "-y x"), ("-a 0", "-a 0"), ("-i 0", "-i 0"),
                                 ("-x 1000000 -y 1000000", "more than 2147483647 elements"), ("-t 5", "-t 5: two numbers"),
                                 ("-t 5x", "-t 5x"), ("-t 0x5", "-t 0x5"), ("-g 2y2", "-g 2y2"), ("-m fast", "-m fast: the"),
                                 ("-m own,", "-m : the methods"), ("-w -r", "-w and -r contradict"),
                                 ("-w -i 2", "-w and -i contradict"), ("-w -s", "-s is for reading"),
                                 ("--hint x", "--hint x: a hint is"), ("--hint =x", "--hint =x"), ("-m", "-m needs a value"),
                                 ("-z", "unknown option -z"), ("more", "more: not an option")):
            job = self.bad([POPIO, "-d", self.dir, *options.split()], "^popio: process 0: .*" + pattern)
            self.assertEqual((job.code, job.out), (2, ""))
        self.assertEqual(self.bad(mpi(2, POPIO, "-x", "0"), "^popio: process 0: -x 0").code, 2)

    def test_what_does_not_fit(self):
        for options, pattern in ((["-g", "3x1"], "-g 3x1: the job has 2 processes"), (["-d", self.dir + "/none"], "No such"),
                                 (["-x", 46340, "-y", 46340, "-a", 100000], "no memory for 100000 arrays"),
                                 (["-o", "/nonexistent/report"], "cannot make the report"),
                                 (["--json", "/nonexistent/json"], "cannot make the result")):
            self.bad(mpi(2, POPIO, "-d", self.dir, *options), "^popio: process [01]: .*" + pattern)
            self.assertEqual(os.listdir(self.dir), [])

    def test_what_is_there_already_is_left_alone(self):
        for name in ("popio.pieces", "popio.own.1"):
            with open(os.path.join(self.dir, name), "wb") as file:
                file.write(b"precious")
        for method in ("pieces", "own"):
            self.bad(mpi(2, POPIO, "-d", self.dir, *SMALL, "-m", method), "is there already: it is left alone")
        self.assertEqual(self.files(), {"popio.pieces": 8, "popio.own.1": 8})

    def test_a_full_file_system(self):
        listing = os.path.join(self.aside, "listing")
        shell = f'{shlex.join(mpi(3))} "$0" "$@"; code=$?; ls "{self.dir}" >"{listing}"; exit $code'
        for method in METHODS:
            words = ["sh", "-c", shell, POPIO, "-d", self.dir, "-x", "500", "-y", "500", "-m", method]
            self.bad(in_own_mounts(f"mount -t tmpfs -o size=1m none '{self.dir}'", words),
                     f"^popio: process [012]: {method.capitalize()}: (cannot write|.* were written|.* are wrong)",
                     # Open MPI's MPI-IO says it and goes on: the comparison finds what is missing.
                     noise="mca_fbtl_posix|vulcan_write_all")
            self.assertEqual(os.path.getsize(listing), 0)

    def test_a_process_that_does_not_see_the_files(self):
        unshare = "unshare --mount" if os.geteuid() == 0 else "unshare --mount --map-root-user"
        shell = f"""exec {unshare} sh -c 'mount -t tmpfs none "{self.dir}" && exec "$0" "$@"' "$0" "$@" """
        self.bad(mpi_with_first(shell, 2, POPIO, "-d", self.dir, *SMALL, "-m", "own", "-s"),
                 "process [01]: Own: cannot open .*popio.own")
        self.assertEqual(os.listdir(self.dir), [])

    def test_nothing_is_left_when_a_process_is_killed(self):
        words = [POPIO, "-d", self.dir, "-x", 300, "-y", 200, "-i", 1000, "-m", "independent,own", "-o", self.dir + "/r"]
        self.nothing_left_when_killed(3, words, lambda: any(name.startswith("popio") for name in self.files()), "a file")
