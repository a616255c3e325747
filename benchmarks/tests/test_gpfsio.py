"""gpfsio: which bytes each thread touches, the rates recomputed from the raw times, -C, the clocks, the servers."""

import itertools
import json
import os
import subprocess

from harness import KIB, MIB, MPIEXEC, Case, every_mpi, in_own_mounts, mpi, program, rows_of, run, stamps

GPFSIO = program("gpfsio")
SMALL = "-c 5 -b 1K -i 1".split()


def twin(nodes, threads, records, size, layout, rotate=0):
    """Where each record is, in the plainest way: {(process, thread): (file, [offsets])}."""
    places = {}
    for process, thread in itertools.product(range(nodes), range(threads)):
        home = (process - rotate) % nodes
        index = home * threads + thread
        if layout == "segmented":
            places[process, thread] = "gpfsio.data", [(index * records + i) * size for i in range(records)]
        elif layout == "strided":
            places[process, thread] = "gpfsio.data", [(i * nodes * threads + index) * size for i in range(records)]
        else:
            places[process, thread] = f"gpfsio.{home}.{thread}", [i * size for i in range(records)]
    return places


LAYOUTS = [("segmented", []), ("strided", ["-S"]), ("separate", ["-T"])]


def percent(cpu, kind):
    """Of the processors of a node; a test can be over within a tick of its clock."""
    return 100 * cpu[f"node_{kind}_seconds"] / cpu["node_total_seconds"] if cpu["node_total_seconds"] > 0 else 0


class Places(Case):
    def words(self, processes, *more):
        return mpi(processes, GPFSIO, "-d", self.dir, *more)

    def test_the_cells_of_the_document(self):
        # Table 1: 2,000 records of 256 KB of each thread, segmented in one file.
        plan = self.good(self.words(4, "--plan", "-n", "1,2,4", "-t", "1,2,4,8,16")).out.splitlines()
        expected = []
        for nodes, threads in itertools.product((1, 2, 4), (1, 2, 4, 8, 16)):
            for operation, index in itertools.product(("write", "read"), range(nodes * threads)):
                expected.append(f"{operation} {nodes} {threads} {index // threads} {index % threads} "
                                f"{self.dir}/gpfsio.data {index * 500 * MIB} {256 * KIB} {256 * KIB} 2000")
        self.assertEqual(plan, expected)
        self.assertEqual(os.listdir(self.dir), [])

    def expected_trace(self, who, cells, operations, layout, rotate, check):
        """The lines of one thread in the order in which they must come."""
        lines = []
        for nodes, threads in cells:
            if who[0] >= nodes or who[1] >= threads:
                continue

            def does(name, turned, run_number):
                file, offsets = twin(nodes, threads, 5, KIB, layout, turned)[who]
                lines.extend([name, str(nodes), str(threads), str(run_number), f"{self.dir}/{file}", str(offset), "1024"]
                             for offset in offsets)
            for run_number in (1, 2):
                if "write" not in operations and run_number == 1:
                    does("fill", 0, 1)
                    if check:
                        does("check", 1, 1)
                for operation in operations:
                    does(operation, 1 if operation == "read" and rotate else 0, run_number)
                    if check and operation != "read":
                        does("check", 1, run_number)
        return lines

    def test_each_thread_touches_its_bytes_and_no_others(self):
        written = ["write", "read"]
        for (layout, flags), rotate, check, operations in (
                (LAYOUTS[0], False, False, written), (LAYOUTS[0], True, True, ["write", "rewrite", "read"]),
                (LAYOUTS[0], False, True, ["read"]), (LAYOUTS[1], True, False, written),
                (LAYOUTS[1], False, True, ["rewrite"]), (LAYOUTS[2], True, False, ["rewrite", "read"]),
                (LAYOUTS[2], True, True, written)):
            with self.subTest(layout=layout, rotate=rotate, check=check, operations=operations):
                more = flags + ["-r"] * rotate + ["-C"] * check
                _, trace = self.trace("GPFSIO_TRACE", self.words(3, "-n", "1,3,2", "-t", "2,1", "-c", "5", "-b", "1K",
                                                                 "-i", "2", "-o", ",".join(operations), *more))
                cells = list(itertools.product((1, 3, 2), (2, 1)))
                for who, lines in trace.items():
                    self.assertEqual(lines, self.expected_trace(who, cells, operations, layout, rotate, check))
                self.assertEqual(len(trace), 3 * 2)
                self.assertEqual(os.listdir(self.dir), [])

    def test_the_files_that_are_kept_tell_who_wrote_them(self):
        for layout, flags in LAYOUTS:
            self.setUp()
            self.good(self.words(3, "-K", "-C", "-t", "2", *SMALL, "-o", "write,rewrite", *flags))
            expected = {}
            for (process, thread), (file, offsets) in twin(3, 2, 5, KIB, layout).items():
                for offset in offsets:
                    expected[file, offset] = (process, thread, 2)
            found = {}
            for name in self.files():
                with open(os.path.join(self.dir, name), "rb") as file:
                    for index, (at, *who) in enumerate(stamps(file.read())):
                        self.assertEqual(at, index * 16)
                        self.assertEqual(found.setdefault((name, at // KIB * KIB), tuple(who)), tuple(who))
            self.assertEqual(found, expected)
            self.doCleanups()

    def test_a_job_can_work_where_another_does(self):
        self.good(self.words(2, *SMALL, "-K"))
        self.bad(self.words(2, *SMALL), r"gpfsio.data: File exists \(remove it, or use -U\)")
        self.good(self.words(2, *SMALL, "-U"))
        self.assertEqual(self.files(), {"gpfsio.data": 2 * 5 * KIB})

    def test_direct_io_sync_and_forget(self):
        words = self.words(2, "-t", "2", "-c", "4", "-b", "4K", "-i", "2", "-I", "-e", "-F", "-C", "-r")
        self.good(in_own_mounts(f"mount -t tmpfs none '{self.dir}'", words))
        self.bad(in_own_mounts(f"mount -t ramfs none '{self.dir}'", words), "gpfsio.data for direct I/O: Invalid")

    def test_help_names_every_option(self):
        text = self.good(mpi(2, GPFSIO, "--help")).out
        for option in ("-n -t -o -c -b -i -d -U -S -T -r -I -e -F -C -K -N --json --server --plan --help --trim "
                       "GPFSIO_TRACE").split():
            self.assertIn(option, text)
        self.assertEqual(text.count("Measures sequential"), 1)
        self.assertEqual(run([GPFSIO, "--help"]).out, text)


class Figures(Case):
    def job(self, processes, *more, **how):
        """The report, and what --json says of the same job."""
        path = os.path.join(self.aside, "result.json")
        words = [str(word) for word in mpi(processes, GPFSIO, "-d", self.dir, "--json", path, *more)]
        report = self.good(words, **how).out
        self.assertEqual(os.listdir(self.dir), [])
        with open(path, encoding="utf-8") as file:
            return report, json.load(file)

    def check_result(self, result, records, size):
        """A test's figures from the times of its threads."""
        spans = [span for process in result["processes"] for span in process["threads"]]
        self.assertEqual([process["process"] for process in result["processes"]], list(range(result["nodes"])))
        self.assertEqual(len(spans), result["nodes"] * result["threads"])
        first = min(span["start_seconds"] for span in spans)
        self.assertEqual(first, 0)
        self.assertAlmostEqual(result["seconds"], max(span["end_seconds"] for span in spans), delta=1e-9)
        self.assertTrue(all(span["start_seconds"] < span["end_seconds"] for span in spans))
        self.assertEqual(result["bytes"], len(spans) * records * size)
        self.assertAlmostEqual(result["rate_mb_s"], result["bytes"] / MIB / result["seconds"], delta=1e-6)

    @every_mpi
    def test_rates_and_means_follow_from_the_raw_times(self):
        report, whole = self.job(3, "-n", "1,3", "-t", "1,2", "-i", "4", "--trim", "-c", "20", "-b", "4K",
                                 "-o", "read,write,rewrite", "--server", "@1")
        results = whole["results"]
        self.assertEqual((whole["program"], whole["options"]["operations"]), ("gpfsio", ["write", "rewrite", "read"]))
        self.assertEqual(len(whole["machine"]["processes"]), 3)
        order = [(r["nodes"], r["threads"], r["run"], r["operation"]) for r in results]
        self.assertEqual(order, list(itertools.product((1, 3), (1, 2), (1, 2, 3, 4), ("write", "rewrite", "read"))))
        for result in results:
            self.check_result(result, 20, 4 * KIB)
            self.assertEqual(result["clock_error_seconds"], 0)
        for mean in whole["means"]:
            cell = [r for r in results if all(r[key] == mean[key] for key in ("operation", "nodes", "threads"))]
            rates = sorted(r["rate_mb_s"] for r in cell)
            self.assertEqual(sorted(r["rate_mb_s"] for r in cell if r["counts"]), rates[1:3])
            self.assertAlmostEqual(mean["rate_mb_s"], sum(rates[1:3]) / 2, delta=1e-6)
            self.check_processors(mean, [r for r in cell if r["counts"]])
        self.assertEqual(len(whole["means"]), 3 * 4)
        self.check_report(report, whole)

    @staticmethod
    def peak_line(best):
        user, system = best["node_user_percent"], best["node_system_percent"]
        return (f"Peak: {best['rate_mb_s']:.1f} MB/s, nodes: {best['nodes']}, threads: {best['threads']}; CPU of a node: "
                f"{user + system:.1f}% ({user:.1f}% user, {system:.1f}% system)")

    def check_processors(self, mean, runs):
        """The processors of the nodes, and of the server: means of the runs that count."""
        for kind in ("user", "system"):
            of_nodes, of_server = [], []
            for result in runs:
                shares = [percent(process, kind) for process in result["processes"]]
                of_nodes.append(sum(shares) / len(shares))
                of_server.append(percent(result["servers"][0], kind))
            self.assertAlmostEqual(mean[f"node_{kind}_percent"], sum(of_nodes) / len(runs), delta=1e-6)
            self.assertAlmostEqual(mean["servers"][0][f"node_{kind}_percent"], sum(of_server) / len(runs), delta=1e-6)

    def check_report(self, report, whole):
        """The report says what the JSON does."""
        for operation in ("Write", "Rewrite", "Read"):
            header, *rows, peak, server = rows_of(report, f"Mean {operation} Performance (MB/s)")
            self.assertEqual(header, ["1", "Thread", "2", "Threads"])
            self.assertEqual([row[:2] for row in rows], [["1", "Node"], ["3", "Nodes"]])
            cells = [float(cell) for row in rows for cell in row[2:]]
            means = [m["rate_mb_s"] for m in whole["means"] if m["operation"] == operation.lower()]
            for cell, mean in zip(cells, means, strict=True):
                self.assertAlmostEqual(cell, mean, delta=0.0501)
            best = max((m for m in whole["means"] if m["operation"] == operation.lower()), key=lambda m: m["rate_mb_s"])
            self.assertEqual(" ".join(peak), self.peak_line(best))
            self.assertEqual(" ".join(server[:6]), "CPU of the node of server")
        raw = rows_of(report, "RAW TIMES")
        spans = [(r["operation"], r["nodes"], r["threads"], r["run"], p["process"], s["thread"], s)
                 for r in whole["results"] for p in r["processes"] for s in p["threads"]]
        self.assertEqual([row[:6] for row in raw], [[str(field) for field in span[:6]] for span in spans])
        for row, span in zip(raw, spans, strict=True):
            self.assertAlmostEqual(float(row[6]), span[6]["start_seconds"], delta=1e-8)
            self.assertAlmostEqual(float(row[7]), span[6]["end_seconds"], delta=1e-8)
        for row, result in zip(rows_of(report, "RUNS")[1:], whole["results"], strict=True):
            self.assertEqual(row[:5], [result["operation"], str(result["nodes"]), str(result["threads"]),
                                       str(result["run"]), "yes" if result["counts"] else "no"])
            self.assertAlmostEqual(float(row[7]), result["rate_mb_s"], delta=0.00501)

    def test_all_runs_count_without_trim(self):
        _, whole = self.job(1, "-i", "3", "-c", "5", "-b", "1K")
        self.assertTrue(all(result["counts"] for result in whole["results"]))
        for mean in whole["means"]:
            rates = [r["rate_mb_s"] for r in whole["results"] if r["operation"] == mean["operation"]]
            self.assertAlmostEqual(mean["rate_mb_s"], sum(rates) / 3, delta=1e-6)

    def test_nodes_with_clocks_of_their_own(self):
        # Process 1 lives in a time namespace that is a day ahead, and in a mount namespace of nothing else.
        path = os.path.join(self.aside, "result.json")
        words = [GPFSIO, "-d", self.dir, "--json", path, "-c", "50", "-b", "4K", "-i", "1"]
        ahead = ["unshare", "--time", "--monotonic", "86400", "--fork", "--kill-child"]
        self.good([*MPIEXEC, "-n", "1", *words, ":", "-n", "1", *ahead, *words])
        with open(path, encoding="utf-8") as file:
            results = json.load(file)["results"]
        for result in results:
            self.check_result(result, 50, 4 * KIB)
            self.assertLess(result["seconds"], 30)
            errors = [process["clock_error_seconds"] for process in result["processes"]]
            self.assertEqual((errors[0], max(errors)), (0, result["clock_error_seconds"]))
            # Half of an exchange of messages on one machine, the best of many.
            self.assertTrue(0 < errors[1] < 0.1, errors)

    def test_processor_time_of_servers(self):
        busy = subprocess.Popen(["sh", "-c", "while :; do :; done"])
        idle = subprocess.Popen(["sleep", "600"])
        try:
            path = os.path.join(self.aside, "pid")
            with open(path, "w", encoding="ascii") as file:
                file.write(f"{idle.pid}\n")
            # Long enough for the clock ticks in which processes are counted; in a local directory, whatever is tested.
            report, whole = self.job(2, "-d", self.aside, "-n", "1", "-i", "1", "-c", "80000", "-b", "4K", "-o", "write",
                                     "--server", f"{busy.pid}", "--server", f"{path}@1", "--server", "@1")
        finally:
            for process in (busy, idle):
                process.kill()
                process.wait()
        result, = whole["results"]
        on_busy, on_idle, on_node = result["servers"]
        self.assertEqual([server["process"] for server in result["servers"]], [0, 1, 1])
        # A tick at least, however many others want the processors.
        self.assertGreater(on_busy["user_seconds"] + on_busy["system_seconds"], 0)
        self.assertLess(on_busy["user_seconds"] + on_busy["system_seconds"], on_busy["elapsed_seconds"] + 0.05)
        self.assertEqual((on_idle["user_seconds"], on_idle["system_seconds"]), (0, 0))
        for server in (on_busy, on_idle, on_node):
            self.assertGreater(server["node_user_seconds"] + server["node_system_seconds"], 0)
            self.assertLessEqual(server["node_user_seconds"] + server["node_system_seconds"],
                                 server["node_total_seconds"] + 1e-9)
        client = result["processes"][0]
        self.assertGreater(client["user_seconds"] + client["system_seconds"], 0.02)
        self.assertEqual(len(rows_of(report, "SERVERS")) - 1, 3)


class Check(Case):
    def test_a_wrong_byte_is_found_wherever_it_is(self):
        # 3 nodes, 2 threads, 4 records of 1K each: a node reads back what the one before it wrote.
        for at, layout, flags, who in ((0, "gpfsio.data", [], (0, 0)), (5 * KIB + 3, "gpfsio.data", [], (0, 1)),
                                       (24 * KIB - 1, "gpfsio.data", [], (2, 1)),
                                       (8 * KIB + 9, "gpfsio.data", ["-S"], (1, 0)),
                                       (4 * KIB - 1, "gpfsio.2.1", ["-T"], (2, 1))):
            words = mpi(3, GPFSIO, "-d", self.dir, "-t", "2", "-c", "4", "-b", "1K", "-i", "1", "-C", *flags)
            # A flipped bit in the stamp shows there, or in its check sum.
            exact = at if at % 16 < 8 else r"\d+"
            wrote = f"written last by process {who[0]}, thread {who[1]}, pass 1"
            self.bad(words, f"process {(who[0] + 1) % 3}: check, 3 nodes, 2 threads: thread {who[1]}: .*/{layout} "
                            f"is wrong at offset {exact}: {wrote}", env=self.lie("write", layout, at))
            self.assertEqual(os.listdir(self.dir), [])

    def test_a_wrong_read_and_a_lost_write_are_found(self):
        words = mpi(2, GPFSIO, "-d", self.dir, "-t", "2", "-c", "4", "-b", "1K", "-i", "1", "-C")
        self.bad(words, "check, 2 nodes, 2 threads: thread 1: .*offset 5122: ", env=self.lie("read", "gpfsio.data", 5122))
        self.bad(words, "check, .* is wrong at offset 5121: .*0x0+ instead of the offset",
                 env=self.lie("lose", "gpfsio.data", 5 * KIB + 77))
        # The second write is lost: the first one's stamp is there.
        self.bad([*words, "-T", "-o", "write,rewrite"],
                 "offset 8: .* thread 0, pass 2; found: process 0, thread 0, pass 1",
                 env=self.lie("stale", "gpfsio.0.0", 0))

    def test_without_c_nothing_is_compared(self):
        words = mpi(2, GPFSIO, "-d", self.dir, "-t", "2", "-c", "4", "-b", "1K", "-i", "1")
        self.good(words, env=self.lie("write", "gpfsio.data", 0))
