"""gupfs-report without its pages: the catalog, the documents' figures, the engine, resuming, and failures.

Most tests run stand-ins for mpiexec and metabench, which say what was asked of them.
"""

import glob
import json
import os
import re
import signal
import stat
import sys

from harness import BUILD, MIB, MPIEXEC, Case, every_mpi, finish, launch, run, wait_until

REPORT = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "report")
sys.path.insert(0, REPORT)
sys.dont_write_bytecode = True

from gupfs_report import Failure, catalog, documents, values  # noqa: E402
from gupfs_report.catalog.gupfs2002 import BLOCKS  # noqa: E402
from gupfs_report.catalog.ncar2008 import METHODS  # noqa: E402
from gupfs_report.engine import jobs_of  # noqa: E402
from gupfs_report.launch import command  # noqa: E402
from gupfs_report.model import Cell, Job  # noqa: E402
from gupfs_report.scale import SCALES, option_size  # noqa: E402
from gupfs_report.store import Store  # noqa: E402

# Of the command when it runs the programs themselves.
ENVIRONMENT = {"PYTHONPATH": REPORT, "MPIEXEC": " ".join(MPIEXEC)}
# The tables and figures that must be there.
PROMISED = {
    "gupfs-2002": ["table-1", "figure-10", "figure-11", "table-b-3"],
    "gpfs-1.4": [*(f"table-{number}" for number in (1, 2, 4, 5, 7, 8)), *(f"figure-{number}" for number in range(3, 9))],
    "sdsc-2004": [f"graph-{number}" for number in range(1, 7)],
    "ncar-2008": ["figure-2", "figure-3", "figure-4", "figure-5", "popio"],
}
FAKE_MPIEXEC = """#!/bin/sh
[ "$1" = --version ] && { echo "HYDRA build details:"; echo "    Version: 4.0"; exit 0; }
shift 2
exec "$@"
"""
# Says how often it ran; its one rate for every test is RATE or 100.
FAKE_METABENCH = """#!/bin/sh
echo run >>"{aside}/runs"
{before}
echo "Test      Num_proc      Files      Elapsed s      Files/s"
echo "--------- -------- ---------- -------------- ------------"
for test in Create-A Create-B Create-C Stat-A Stat-B Utime-A Utime-B Append-A Append-B Untar; do
    echo "$test 1 $(( 10 * $(wc -l <"{aside}/runs") )) 1.0 0"
done
echo
echo "Command: metabench"
{after}
"""


def columns_of(experiment):
    return "x" if "x" in experiment.columns else "series" if "series" in experiment.columns else "subject"


class Catalog(Case):
    def test_every_promised_table_and_figure_is_there(self):
        promised = {f"{document}-{name}" for document, names in PROMISED.items() for name in names}
        self.assertEqual(promised - set(catalog.EXPERIMENTS), set())
        for name, experiment in catalog.EXPERIMENTS.items():
            self.assertEqual(name, experiment.id)
            self.assertEqual(name, f"{experiment.document}-{experiment.source}")
            source = documents.source(experiment.document, experiment.source)
            self.assertTrue(source["title"] and source["where"], name)

    def test_each_number_of_a_document_has_its_cell(self):
        """At every scale: the rows and columns are the document's, whatever is measured of them."""
        for name, experiment in catalog.EXPERIMENTS.items():
            for scale in SCALES.values():
                cells = experiment.cells(scale)
                places = [(cell.panel, cell.series, float(cell.x)) for cell in cells]
                self.assertEqual(len(places), len(set(places)), name)
                series = {cell.series for cell in cells}
                for number in documents.published(experiment.document, experiment.source, "then", columns_of(experiment)):
                    if number.x is None:
                        self.assertIn(number.series, series, name)
                    else:
                        self.assertIn((number.panel, number.series, number.x), places, name)
                for cell in cells:
                    self.assertNotEqual(bool(cell.job), bool(cell.gap), f"{name}: a job, or a reason")
                    self.assertEqual(bool(cell.job), bool(cell.metric), name)
                self.assertTrue(experiment.scaled(scale), name)

    def test_larger_scales_measure_more(self):
        for name, experiment in catalog.EXPERIMENTS.items():
            counts = [sum(1 for cell in experiment.cells(scale) if cell.job) for scale in SCALES.values()]
            self.assertEqual(counts, sorted(counts), name)
            self.assertGreater(counts[0], 0, name)

    def test_the_documents_agree_with_themselves(self):
        """What the prose says of its tables holds for the copied numbers."""
        table = documents.load("gupfs-2002")["tables"]["table-1"]["rows"]
        self.assertEqual((min(table["Create-A"]), max(table["Create-A"])), (489, 641))
        self.assertEqual(sum(map(sum, table.values())), 126723)
        table = documents.load("gupfs-2002")["tables"]["table-b-3"]
        self.assertEqual(len(table["panels"]), 10)
        whole = [value for rows in table["panels"].values() for row in rows.values() for value in row]
        self.assertEqual((len(whole), round(sum(whole), 2)), (480, 90215.63))
        tables = documents.load("gpfs-1.4")["tables"]
        sizes = {name: len(table["rows"]) * len(table["columns"]) for name, table in tables.items()}
        self.assertEqual(sizes, {"table-1": 30, "table-2": 30, "table-4": 30, "table-5": 30, "table-7": 45, "table-8": 40})
        # Section "GPFS Performance on POWER3 SMP ...": peaks, with the nodes and threads where they were.
        for name, nodes, threads, peak in (("table-1", 4, 2, 125.5), ("table-2", 4, 1, 144.4), ("table-4", 32, 16, 235.9),
                                           ("table-5", 8, 1, 229.2)):
            rows = tables[name]["rows"]
            self.assertEqual(rows[str(nodes)][tables[name]["columns"].index(threads)], peak)
            self.assertEqual(max(max(row) for row in rows.values()), peak)
        self.assertEqual((tables["table-7"]["rows"]["16"][1], tables["table-8"]["rows"]["2"][3]), (716.4, 711.1))
        self.assertEqual([round(sum(map(sum, table["rows"].values())), 1) for table in tables.values()],
                         [3715.1, 3979.4, 5879.7, 5623.9, 29211.3, 21415.9])

    def test_the_documents_agree_with_their_texts(self):
        """Where the texts are at hand (GUPFS_REFERENCES): each row of a table and each quotation is in them."""
        directory = os.environ.get("GUPFS_REFERENCES")
        for name in documents.NAMES if directory else ():
            with open(f"{directory}/{name}.txt", encoding="utf-8") as file:
                text = file.read()
            data = documents.load(name)
            numbers = [re.findall(r"\d+(?:\.\d+)?", line.replace(",", "")) for line in text.splitlines()]
            rows = [[float(number) for number in line] for line in numbers]
            for table in data["tables"].values():
                for panel in table.get("panels", {"": table.get("rows")}).values():
                    for row in panel.values():
                        self.assertTrue(any(line[-len(row):] == row for line in rows), (name, table["name"], row))
            flat = flatten(text)
            for figure in data["figures"].values():
                for quote in figure["says"]:
                    self.assertIn(flatten(quote["text"]), flat, (name, figure["name"]))

    def test_unknown_names(self):
        with self.assertRaisesRegex(Failure, "table-99: no such table, figure or document"):
            catalog.find(["table-99"])
        with self.assertRaisesRegex(Failure, "is it one of .*gupfs-2002-table-1"):
            catalog.find(["table-1"])
        self.assertEqual([experiment.id for experiment in catalog.find(["gupfs-2002-fig*"])],
                         ["gupfs-2002-figure-10", "gupfs-2002-figure-11"])


def flatten(text):
    """A text without line ends, hyphens at line ends, and what the scans of these texts take for one another."""
    text = text.replace("-\n", "").replace("\u2019", "'")
    return re.sub(r"\s+", " ", text).replace("I/0", "I/O").replace("1/0", "I/O").replace("1/O", "I/O")


class Values(Case):
    def record(self, build="b", started="2026-01-01", failure="", **rates):
        return {"program": {"sha256": build}, "started": started, "failure": failure, "values": rates}

    def test_repeats(self):
        self.assertEqual(values.value_of([1, 2, 9], "median"), 2)
        self.assertEqual(values.value_of([1, 2, 9], "mean"), 4)
        self.assertEqual(values.value_of([1, 2, 4, 9], "trimmed"), 3)

    def test_what_was_not_measured_is_a_gap(self):
        cell = Cell("", "", 1, Job("p", 1, ()), "rate")
        good, bad = self.record(rate=5.0), self.record(failure="it died")
        for runs, gap in (([], "not measured yet"), ([bad], "failed: it died"), ([self.record(other=1)], "reported no rate"),
                          ([self.record("old", rate=3.0)], "older build")):
            found = values.measure(runs, cell, "b", "median", 2)
            self.assertNotIn("value", found)
            self.assertIn(gap, found["gap"])
        found = values.measure([good, bad], cell, "b", "median", 2)
        self.assertEqual((found["value"], found["runs"], found["gap"]), (5.0, 1, "1 of 2 runs; failed: it died"))
        found = values.measure([good, self.record(rate=7.0), self.record("old", rate=99.0)], cell, "b", "median", 2)
        self.assertEqual((found["value"], found["low"], found["high"], found["gap"]), (6.0, 5.0, 7.0, ""))

    def test_the_build_that_ran_last_counts(self):
        records = [self.record("new", "2026-01-02"), self.record("old", "2026-01-01")]
        self.assertEqual(values.latest_build(records), "new")


class Commands(Case):
    def test_processes_are_placed_on_mounts_in_turn(self):
        job = Job("p", 3, ("-d", "{dir}", "--json", "{json}", "--tar", "{tar:1:1:1}"))
        one = command(["mpiexec"], "/b/p", job, ["/mnt/w"], "/j", "/t")
        self.assertEqual(one, "mpiexec -n 3 /b/p -d /mnt/w --json /j --tar /t".split())
        two = command(["mpiexec"], "/b/p", job, ["/n 1/w", "/n2/w"], "/j", "/t")
        parts = " ".join(two[1:]).split(" : ")
        self.assertEqual([re.search(r"cd (\S*'?.*?'?) &&", part)[1] for part in parts], ["'/n 1/w'", "/n2/w", "/n 1/w".join("''")])
        self.assertTrue(all(part.startswith("-n 1 sh -c") and part.endswith("/b/p -d . --json /j --tar /t") for part in parts))

    def test_devices(self):
        job = Job("p", 2, ("-d", "{dir}"), ("{devices}", "-I"), 2)
        self.assertEqual(command(["mpiexec"], "/b/p", job, [], "/j", "", ("/dev/a", "/dev/b", "/dev/c")),
                         "mpiexec -n 2 /b/p -R /dev/a -R /dev/b -I".split())
        self.assertEqual([bool(job.gap(*kind)) for kind in ((True, 2), (True, 1), (False, 1))], [False, True, True])
        self.assertIn("needs a file system", Job("p", 2, ()).gap(True, 1))

    def test_sizes(self):
        self.assertEqual([option_size(size) for size in (1 << 30, 3 << 20, 5 << 10, 7)], ["1G", "3M", "5K", "7"])


class Runs(Case):
    """The command as a whole, with stand-ins for the programs."""

    def setUp(self):
        super().setUp()
        self.build = os.path.join(self.top, "build")
        os.mkdir(self.build)
        self.results = os.path.join(self.top, "results")
        self.script("mpiexec", FAKE_MPIEXEC)
        self.metabench()

    def script(self, name, text):
        path = os.path.join(self.build, name)
        # Never written while it runs.
        with open(path + ".new", "w", encoding="ascii") as file:
            file.write(text)
        os.chmod(path + ".new", stat.S_IRWXU)
        os.replace(path + ".new", path)

    def metabench(self, before="", after=""):
        self.script("metabench", FAKE_METABENCH.format(aside=self.aside, before=before, after=after))

    def words(self, *more, names=("gupfs-2002-table-1",), on=None):
        return [sys.executable, "-B", "-m", "gupfs_report", "run", *names, "--on", on or f"here={self.dir}", "--scale", "quick",
                "--repeats", "2", "--results", self.results, "--no-pages", "--build", self.build,
                "--mpiexec", os.path.join(self.build, "mpiexec"), *more]

    env = {"PYTHONPATH": REPORT}

    def measure(self, *more, code=0, **what):
        job = run(self.words(*more, **what), env=self.env)
        self.assertEqual(job.code, code, job)
        return job

    def count(self):
        """How often the program ran."""
        try:
            with open(os.path.join(self.aside, "runs"), encoding="ascii") as file:
                return len(file.readlines())
        except FileNotFoundError:
            return 0

    def records(self):
        return [json.load(open(path, encoding="utf-8")) for path in sorted(glob.glob(self.results + "/runs/*/*/*.*.json"))]

    def test_measured_once(self):
        jobs = len(jobs_of(catalog.find(["gupfs-2002-table-1"]), SCALES["quick"]))
        self.measure()
        self.assertEqual(self.count(), 2 * jobs)
        records = self.records()
        self.assertEqual(len(records), 2 * jobs)
        for record in records:
            self.assertEqual((record["failure"], record["code"], len(record["values"])), ("", 0, 10))
        logs = glob.glob(self.results + "/runs/*/*/*.log")
        self.assertEqual(len(logs), 2 * jobs)
        with open(logs[0], encoding="utf-8") as file:
            self.assertRegex(file.read(), r"(?s)^\$ .*metabench -CSUATk.*Create-A .*--- status 0")
        self.assertIn(f"0 runs measured, {2 * jobs} were stored already", self.measure().err)
        self.assertEqual(self.count(), 2 * jobs)
        self.assertEqual(os.listdir(self.dir), [])

    def test_a_failing_program_leaves_a_gap_and_is_tried_again(self):
        self.metabench(after='echo "metabench: process 1: no luck" >&2; exit 3')
        job = self.measure(code=1)
        self.assertIn("failed: ended with status 3: metabench: process 1: no luck", job.err)
        self.assertTrue(all(record["values"] == {} and "no luck" in record["failure"] for record in self.records()))
        count = self.count()
        self.metabench()
        self.measure()
        self.assertEqual(self.count(), 2 * count)
        self.assertTrue(all(record["values"] and not record["failure"] for record in self.records()))

    def test_a_report_that_is_not_complete_is_no_result(self):
        for text, why in (("#!/bin/sh\necho nothing\n", "no table of tests"), ("#!/bin/sh\nexit 0\n", "no table of tests"),
                          ("#!/bin/sh\nprintf 'Test Num_proc\\n---\\nCreate-A 1 0 1.0 0\\n\\nCommand: x\\n'\n", "Create-A is 0"),
                          ("#!/bin/sh\nprintf 'Test Num_proc\\n---\\nCreate-A 1 5 1.0 0\\n'\n", "ends too early")):
            self.script("metabench", text)
            self.measure("--repeats", "1", code=1)
            self.assertTrue(all(why in record["failure"] and not record["values"] for record in self.records()), why)

    def test_another_build_and_another_set_up_are_not_mixed(self):
        self.measure()
        count = self.count()
        self.metabench(after="# another build")
        self.measure()
        self.assertEqual(self.count(), 2 * count)
        self.measure("--about", "here=version 2")
        self.assertEqual(self.count(), 3 * count)
        self.assertEqual(len(glob.glob(self.results + "/runs/here/*/identity.json")), 2)
        self.measure("--about", "here=version 2")
        self.assertEqual(self.count(), 3 * count)

    def test_results_of_another_machine_are_not_used(self):
        self.measure()
        count = self.count()
        [place] = glob.glob(self.results + "/runs/here/*")
        os.rename(place, os.path.join(os.path.dirname(place), "another0machine"))
        self.measure()
        self.assertEqual(self.count(), 2 * count)
        store = Store(self.results)
        self.assertEqual(store.others("here", store.session()["targets"]["here"]), ["another0machine"])

    def test_killed_and_resumed(self):
        """kill -9 in the middle of a run: what is stored stays, what ran is ended, nothing is measured twice."""
        total = 2 * len(jobs_of(catalog.find(["gupfs-2002-table-1"]), SCALES["quick"]))
        for which, code in ((signal.SIGKILL, -9), (signal.SIGINT, 130), (signal.SIGTERM, 130)):
            before = self.count()
            kept = len(self.records())
            # The second run of this round waits until it is ended.
            self.metabench(before=f'if [ $(wc -l <"{self.aside}/runs") -ge {before + 2} ] && [ ! -e "{self.aside}/go" ]; then '
                           f'echo $$ >"{self.aside}/pid"; exec sleep 1000; fi')
            job = launch(self.words(), env=self.env)
            wait_until(lambda: os.path.exists(f"{self.aside}/pid") and os.path.getsize(f"{self.aside}/pid"), "it waits")
            with open(f"{self.aside}/pid", encoding="ascii") as file:
                pid = int(file.read())
            os.kill(job.pid, which)
            self.assertEqual(finish(job).code, code)
            wait_until(lambda: not os.path.exists(f"/proc/{pid}") or "Z (zombie)" in open(f"/proc/{pid}/status").read(),
                       "its program has ended")
            os.remove(f"{self.aside}/pid")
            self.assertEqual(len([record for record in self.records() if not record["failure"]]), max(kept, 1))
            with open(f"{self.aside}/go", "w", encoding="ascii"):
                pass
            before = self.count()
            done = self.measure()
            self.assertIn(f"{total - 1} runs measured, 1 were stored already, 0 failed, 0 not begun", done.err)
            self.assertEqual(self.count(), before + total - 1)
            self.assertEqual(os.listdir(self.dir), [])
            os.remove(f"{self.aside}/go")
            # For the next round nothing is stored.
            for path in glob.glob(self.results + "/runs/*/*/*.*.*"):
                os.remove(path)

    def test_time_is_up(self):
        job = self.measure("--minutes", "0.00001")
        self.assertRegex(job.err, "^(?s:.*)\\n1 runs measured, 0 were stored already, 0 failed, 7 not begun")

    def test_what_cannot_be_measured(self):
        self.script("mptio", "#!/bin/sh\n")
        nowhere = os.path.join(self.top, "none")
        file = os.path.join(self.top, "file")
        with open(file, "wb"):
            pass
        other = os.path.join(self.top, "other")
        os.mkdir(other)
        for on, names, more, why in (
                (f"x={nowhere}", ["gupfs-2002-table-1"], [], f"x: {nowhere} does not exist; make it"),
                (f"x={file}", ["gupfs-2002-table-1"], [], "is no directory"),
                (self.dir, ["gupfs-2002-table-1"], [], "it is NAME=DIR"),
                (f"a b={self.dir}", ["gupfs-2002-table-1"], [], "it is NAME=DIR"),
                ("x=", ["gupfs-2002-table-1"], [], "names no directory"),
                (f"x={self.dir},{other}", ["gupfs-2002-table-1"], [], "must be mounts of one file system"),
                (f"x={self.dir}", ["table-1"], [], "no such table, figure or document"),
                (f"x={self.dir}", ["gupfs-2002-figure-10"], [], "mptsum is not built: run `make benchmarks`"),
                (f"x={self.dir}", ["gupfs-2002-table-1"], ["--on", f"x={other}"], "x is there already"),
                (f"x={self.dir}", ["gupfs-2002-table-1"], ["--about", "y=1"], "no target of that name"),
                (f"x={self.dir}", ["gupfs-2002-table-1"], ["--results", file], "cannot be written to")):
            job = self.measure(*more, code=1, names=names, on=on)
            self.assertIn(why, job.err)
            self.assertEqual(len(job.err.splitlines()), 1, job)
        self.assertEqual(self.count(), 0)

    def test_a_file_system_that_is_too_small(self):
        shell = f"mount -t tmpfs -o size=1m none '{self.dir}'"
        unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]
        job = run([*unshare, "sh", "-c", shell + '; exec "$0" "$@"', *self.words()], env=self.env)
        self.assertEqual(job.code, 1, job)
        self.assertRegex(job.err, r"here: .* are free in .*, and the smallest point needs .*; make room")

    def test_what_others_made_stays(self):
        os.mkdir(os.path.join(self.dir, "gupfs-report.work"))
        job = self.measure(code=1)
        self.assertIn("was not made by gupfs-report: move it away", job.err)
        self.assertEqual(os.listdir(self.dir), ["gupfs-report.work"])

    def test_one_at_a_time(self):
        self.metabench(before=f'echo $$ >"{self.aside}/pid"; exec sleep 1000')
        job = launch(self.words(), env=self.env)
        try:
            wait_until(lambda: os.path.exists(f"{self.aside}/pid"), "it runs")
            self.assertIn("another gupfs-report writes results there", self.measure(code=1).err)
        finally:
            os.kill(job.pid, signal.SIGTERM)
            self.assertEqual(finish(job).code, 130)

    def test_help_and_list(self):
        tool = [sys.executable, "-B", "-m", "gupfs_report"]
        self.assertIn("examples:", self.good([*tool, "--help"], env=self.env).out)
        listed = self.good([*tool, "list", "--gaps", "--jobs"], env=self.env).out
        for name in catalog.EXPERIMENTS:
            self.assertIn(name, listed)


class RealPrograms(Case):
    """The programs themselves, on the directory under test."""

    def test_table_1(self):
        results = os.path.join(self.top, "results")
        self.good_run("gupfs-2002-table-1", results)
        paths = glob.glob(results + "/runs/here/*/*.1.json")
        self.assertEqual(len(paths), 4)
        for path in paths:
            with open(path, encoding="utf-8") as file:
                record = json.load(file)
            with open(path.replace(".json", ".log"), encoding="utf-8") as file:
                log = file.read()
            self.assertEqual(len(record["values"]), 10)
            for test, rate in record["values"].items():
                printed = re.search(rf"^{test} .* ([\d.]+)$", log, re.MULTILINE)[1]
                self.assertAlmostEqual(float(printed), rate, delta=rate * 1e-3)

    @every_mpi
    def test_one_point_of_each_program(self):
        for name, metrics in (("gupfs-2002-figure-10", {"Seq_Write", "Seq_Read"}), ("gpfs-1.4-table-1", {"write", "read"}),
                              ("gupfs-2002-table-b-3", {f"{what} {blocks}" for what in ("write", "read") for blocks in BLOCKS}),
                              ("ncar-2008-popio", {f"{how} {what}" for how in METHODS for what in ("write", "read")})):
            results = os.path.join(self.top, name)
            self.good_run(name, results, "--minutes", "0.0001", counts="1 runs")
            self.assertEqual(set(self.only_record(results)["values"]), metrics)

    def test_a_block_device(self):
        """It is overwritten only if that is said."""
        image = os.path.join(self.aside, "image")
        with open(image, "wb") as file:
            file.truncate(192 * MIB)
        device = self.good(["losetup", "--find", "--show", image]).out.strip()
        try:
            results = os.path.join(self.top, "results")
            words = [sys.executable, "-B", "-m", "gupfs_report", "run", "gupfs-2002-figure-11", "--on", f"raw={device}",
                     "--scale", "quick", "--repeats", "1", "--results", results, "--no-pages", "--build", BUILD,
                     "--minutes", "0.0001"]
            self.bad(words, f"raw: {device} is a block device, and all that is on it would be lost", env=ENVIRONMENT)
            self.assertEqual(os.stat(image).st_blocks, 0)
            job = run([*words, "--overwrite", "raw"], env=ENVIRONMENT)
            self.assertEqual(job.code, 0, job)
            record = self.only_record(results)
            self.assertIn(f"-R {device} -F 8M", record["command"])
            self.assertEqual(set(record["values"]), {"Seq_Write", "Seq_Read"})
        finally:
            self.good(["losetup", "--detach", device])

    def only_record(self, results):
        [path] = glob.glob(results + "/runs/*/*/*.1.json")
        with open(path, encoding="utf-8") as file:
            return json.load(file)

    def good_run(self, name, results, *more, counts="4 runs"):
        words = [sys.executable, "-B", "-m", "gupfs_report", "run", name, "--on", f"here={self.dir}", "--scale", "quick",
                 "--repeats", "1", "--results", results, "--no-pages", "--build", BUILD, *more]
        job = run(words, env=ENVIRONMENT)
        self.assertEqual(job.code, 0, job)
        self.assertRegex(job.err, rf"{counts} measured, 0 were stored already, 0 failed")
        self.assertEqual(os.listdir(self.dir), [])
