"""The pages: numbers of the store and of the documents, gaps, ratios; and every page in a browser."""

import html.parser
import os
import re
import shutil
import subprocess
import tempfile
import unittest
import unittest.mock
import xml.etree.ElementTree

from harness import Case

from gupfs_report import catalog, documents, page, plots
from gupfs_report.frame import Reader, by_column
from gupfs_report.scale import QUICK
from gupfs_report.store import Store
from gupfs_report.summary import compare, comparisons

CHROMIUM = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"))), None)
# With SAMPLE set: one for each document and for each way to draw, which is quick; else all of them.
SAMPLED = ["gupfs-2002-table-1", "gpfs-1.4-figure-3", "sdsc-2004-graph-1", "ncar-2008-popio"]
MACHINE = {"host": "h", "machine_id": "m", "processor": "p <&> q", "cores": 2, "memory_bytes": 1 << 34, "system": "s",
           "kernel": "k", "mpi": "MPICH 4"}
MISSING_PICTURES = """<script>addEventListener("load", () => {
    for (const picture of document.images) if (!picture.naturalWidth) console.error("missing: " + picture.src);
})</script>"""


def experiments_under_test():
    names = SAMPLED if os.environ.get("SAMPLE") else list(catalog.EXPERIMENTS)
    return [catalog.EXPERIMENTS[name] for name in names]


class Text(html.parser.HTMLParser):
    """Tags that do not match are a fault; keeps the text."""

    VOID = {"meta", "link", "br", "img", "hr", "input", "col"}

    def __init__(self):
        super().__init__()
        self.open, self.text, self.cells = [], [], []

    def handle_starttag(self, tag, attributes):
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if self.open.pop() != tag:
            raise AssertionError(f"</{tag}> at {self.getpos()}")

    def handle_data(self, data):
        self.text.append(data)


class Pages(Case):
    """A store that is filled by hand: value 100 on `a`, 200 on `b`, and one job that fails on `b`."""

    def setUp(self):
        super().setUp()
        self.store = Store(os.path.join(self.top, "results"))
        self.output = os.path.join(self.top, "pages")

    def fill(self, experiments, scale=QUICK, repeats=3):
        identities = {name: ({"name": name, "about": f"about {name}", "places": [
            {"path": f"/{name}", "mount": "/", "type": "t", "source": "s", "size": 1 << 30}]}, f"id-{name}") for name in "ab"}
        with self.store.locked():
            self.store.save_session({experiment.id: {"scale": scale.name, "repeats": repeats} for experiment in experiments},
                                    identities, MACHINE)
            metrics, self.failing = {}, set()
            for experiment in experiments:
                jobs = [(cell.job, cell.metric) for cell in experiment.cells(scale) if cell.job]
                self.failing.add(jobs[0][0])
                for job, metric in jobs:
                    metrics.setdefault(job, set()).add(metric)
            for job, names in metrics.items():
                for target, rate in (("a", 100.0), ("b", 200.0)):
                    for number in range(1, repeats + 1):
                        fails = target == "b" and job in self.failing
                        self.store.save(target, f"id-{target}", job, number, {
                            "job": {"room_bytes": 1 << 20, "ranks": job.ranks}, "number": number, "failure": "no <luck>" if fails else "",
                            "values": {} if fails else {name: rate + number for name in names},
                            "program": {"name": job.program, "sha256": "build"}, "started": "2026-01-01T00:00:00",
                            "load": 0.5, "seconds": 1.0, "code": 0, "command": "c"}, f"log of {job} <{number}>")

    def read(self, name):
        with open(os.path.join(self.output, name), encoding="utf-8") as file:
            text = file.read()
        parsed = Text()
        parsed.feed(text)
        self.assertEqual(parsed.open, [], name)
        return text, " ".join(parsed.text)

    def test_every_page(self):
        experiments = experiments_under_test()
        self.fill(experiments)
        path = page.write(self.store, self.output)
        self.assertEqual(path, os.path.join(self.output, "index.html"))
        _, index = self.read("index.html")
        for experiment in experiments:
            source = documents.source(experiment.document, experiment.source)
            self.assertIn(source["title"], index)
            raw, text = self.read(experiment.id + ".html")
            # Self-contained: nothing is loaded from elsewhere.
            self.assertEqual(re.findall(r'(?:src|href)="(?!data:|#|[\w./-]+\.(?:html|svg|png|csv)")[^"]*"', raw), [])
            self.assertNotIn("url(http", raw)
            for word in ("MPICH 4", "about a", "log of", "p <&> q", "no <luck>", experiment.y.label):
                self.assertIn(word, text, experiment.id)
            for quote in source.get("says", []):
                self.assertIn(quote["text"], text)
            for what in ("svg", "png"):
                self.assertGreater(os.path.getsize(f"{self.output}/plots/{experiment.id}.{what}"), 5000)
            xml.etree.ElementTree.parse(f"{self.output}/plots/{experiment.id}.svg")
            self.check_numbers(experiment)
        if CHROMIUM:
            self.open_all(len(experiments) + 1)

    def check_numbers(self, experiment):
        """The table of all numbers is what is stored and what the document has, and nothing else."""
        table = Reader(self.store).report(experiment.id).table
        measured = table[table["kind"] == "measured"]
        cells = experiment.cells(QUICK)
        self.assertEqual(len(measured), 2 * len(cells))
        # On a directory.
        jobs = [cell.job for cell in cells if cell.job and not cell.job.gap(False, 1)]
        failed = [job for job in jobs if job in self.failing]
        self.assertEqual(measured["value"].notna().sum(), 2 * len(jobs) - len(failed))
        good = measured.dropna(subset=["value"])
        middle = 2
        self.assertEqual(set(good["value"]), {100.0 + middle, 200.0 + middle})
        self.assertEqual(set(good["low"]) | set(good["high"]), {101.0, 103.0, 201.0, 203.0})
        self.assertTrue((measured[measured["value"].isna()]["gap"] != "").all())
        rows = measured[(measured["subject"] == "b") & measured["job"].isin([job.key for job in failed])]
        self.assertEqual((len(rows), set(rows["gap"])), (len(failed), {"failed: no <luck>"}))
        published = documents.published(experiment.document, experiment.source, experiment.subject, by_column(experiment))
        rest = table[table["kind"] != "measured"]
        self.assertEqual(sorted(rest["value"]), sorted(number.value for number in published))

    def test_ratios(self):
        experiment = catalog.EXPERIMENTS["gupfs-2002-table-1"]
        self.fill([experiment], repeats=1)
        report = Reader(self.store).report(experiment.id)
        found = compare(report, "b", "a")
        # Four jobs of ten values; the first failed on b.
        self.assertEqual((found.points, round(found.ratio, 6)), (30, round(201 / 101, 6)))
        self.assertEqual([(c.left, c.right) for c in comparisons(report)], [("a", "b"), ("a", "GFS 5.1, 2002")])
        then = comparisons(report)[1]
        self.assertEqual(then.points, 40)
        self.assertAlmostEqual(then.least, 101 / 76312)
        self.assertEqual(then.least_at, "Stat-B, N (processes): 1")

    def test_a_curve_is_broken_where_a_point_is_missing(self):
        experiment = catalog.EXPERIMENTS["gupfs-2002-table-1"]
        self.fill([experiment])
        report = Reader(self.store).report(experiment.id)
        plot = plots.Plot(report)
        rows = report.table[(report.table["series"] == "Stat-A") & (report.table["subject"] == "b")]
        whole = plot.with_gaps(("b",), rows.dropna(subset=["value"]))
        self.assertEqual(list(whole["x"]), [1, 2, 3, 4, 6, 8])
        self.assertEqual(list(whole["value"].isna()), [True, False, False, False, True, True])

    def test_targets_have_one_axis_unless_one_lies_on_the_ground(self):
        experiment = catalog.EXPERIMENTS["gpfs-1.4-figure-3"]
        self.fill([experiment])
        report = Reader(self.store).report(experiment.id)
        # The values of b are twice those of a.
        for far, titles in ((3, ["a", "b"]), (1.5, ["a, axis of its own", "b, axis of its own"])):
            with unittest.mock.patch.object(plots, "OWN_AXIS_FROM", far):
                places = plots.Plot(report).draw().axes[:2]
            self.assertEqual([place.get_title() or place.get_title(loc="left") for place in places], titles)
            tops = [place.get_ylim()[1] for place in places]
            self.assertEqual(len(set(tops)), 1 if far == 3 else 2)

    def test_results_of_others_are_marked(self):
        experiment = catalog.EXPERIMENTS["gupfs-2002-table-1"]
        self.fill([experiment])
        os.mkdir(os.path.join(self.store.root, "runs", "a", "another"))
        page.write(self.store, self.output)
        self.assertIn("results of another machine, file system or set-up are stored", self.read(experiment.id + ".html")[1])

    @unittest.skipUnless(CHROMIUM, "no chromium is installed: nothing was opened in a browser")
    def test_a_browser_tells_what_is_missing(self):
        """What test_every_page relies upon: a page that lacks a picture is found."""
        os.mkdir(self.output)
        with open(os.path.join(self.output, "lacking.html"), "w", encoding="ascii") as file:
            file.write('<!DOCTYPE html><link rel="icon" href="data:,"><img src="plots/none.svg"><p>text')
        with self.assertRaisesRegex(AssertionError, "missing: .*none.svg"):
            self.shoot("lacking.html", [])

    def open_all(self, count):
        """Each page is drawn, light and dark, without a word on the console."""
        names = [name for name in sorted(os.listdir(self.output)) if name.endswith(".html")]
        self.assertEqual(len(names), count)
        for index, name in enumerate(names):
            self.shoot(name, ["--blink-settings=preferredColorScheme=0"] if index % 2 else [])

    def shoot(self, name, options):
        """A screenshot; what the page says on the console is a failure. It scripts nothing itself: a copy of it says
        which pictures are missing, which a browser does not."""
        picture = os.path.join(self.top, name + ".png")
        copy = os.path.join(self.output, "tested-" + name)
        with open(os.path.join(self.output, name), encoding="utf-8") as file, open(copy, "w", encoding="utf-8") as to:
            to.write(file.read() + MISSING_PICTURES)
        with tempfile.TemporaryDirectory(dir=self.top) as profile:
            done = subprocess.run(
                [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}", "--enable-logging=stderr",
                 "--window-size=1200,1600", *options, f"--screenshot={picture}", f"file://{copy}"],
                capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(re.findall(r".*(?:CONSOLE|net::ERR).*", done.stderr), [], name)
        # A blank page compresses to a few kilobytes.
        self.assertGreater(os.path.getsize(picture), 30000, name)
