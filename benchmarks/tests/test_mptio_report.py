"""mptio and mptsum: the report, its figures recomputed from the raw times, and its short forms."""

import csv
import glob
import io
import json
import os
import re

from harness import MIB, Case, every_mpi, in_own_mounts, mpi, program, run

MPTIO = program("mptio")
MPTSUM = program("mptsum")

# Verbatim from the document (gupfs-2002, Appendix A.1).
SAMPLE = """\
Size (MB) Recsz (KB) Num_proc Thrd/proc Tot_thrd Rec/proc Rec/th
--------- ---------- -------- --------- -------- -------- ------

200 256 3 4 12 800 200

Test Name Recsz Tot_thrd Rate MB/s E-Rate E-Time %DtVar
---------- ----- -------- ----------- -------- -------- --------
Seq_Write 256 12 9.17 9.17 65.44 1.09
Seq_Read 256 12 88.43 88.43 6.79 9.44

NODE DETAILS
|------|----------------------|----------------------|
| Node |  Seq_Write           |  Seq_Read            |
|      |  Rate  Time   %Sys   |  Rate   Time  %Sys   |
|------|----------------------|----------------------|
|  0   |  3.08  64.90  5.82   |  29.87  6.70  33.60  |
|  1   |  3.06  65.44  5.84   |  32.59  6.14  34.87  |
|  2   |  3.09  64.73  5.81   |  29.48  6.78  28.59  |
|------|----------------------|----------------------|
"""


class Report(Case):
    def summary(self, *words, text=None):
        """What mptsum makes of files, or of a text."""
        if text is not None:
            words += (os.path.join(self.aside, "report"),)
            with open(words[-1], "w", encoding="ascii") as file:
                file.write(text)
        return self.good([MPTSUM, *words]).out

    def assert_rounded(self, printed, exact, step=0.0051):
        """Two decimals, computed from more digits than the raw times have."""
        self.assertAlmostEqual(printed, exact, delta=step + exact * 1e-6)

    @every_mpi
    def test_figures_follow_from_the_raw_times(self):
        out = self.good(mpi(3, MPTIO, "-f", "1M", "-b", "16K", "-t", "2", "-d", self.dir)).out
        report = json.loads(self.summary("--json", text=out))[0]
        self.assertEqual([test["test"] for test in report["tests"]],
                         ["Seq_Write", "Rd_Mod_Wr", "Rand_Write", "Seq_Read", "Rand_Read"])
        for test in report["tests"]:
            raw = test["raw"]
            elapsed = max(process["elapsed_seconds"] for process in raw)
            seconds = [process["seconds"] for process in raw]
            volume = sum(process["bytes"] for process in raw)
            twice = 2 if test["test"] == "Rd_Mod_Wr" else 1
            self.assertEqual([process["bytes"] for process in raw], [twice * MIB] * 3)
            for process in raw:
                self.assertLessEqual(process["seconds"], process["elapsed_seconds"])
            self.assertGreater(min(seconds), 0)
            self.assert_rounded(test["rate_mb_s"], volume / MIB / max(seconds))
            self.assert_rounded(test["e_rate_mb_s"], volume / MIB / elapsed)
            self.assert_rounded(test["e_time_s"], elapsed)
            self.assert_rounded(test["dtvar_percent"], 100 * (max(seconds) - min(seconds)) / elapsed)
            for node, process in zip(test["nodes"], raw, strict=True):
                self.assert_rounded(node["rate_mb_s"], process["bytes"] / MIB / process["seconds"])
                self.assert_rounded(node["time_s"], process["seconds"])
                share = 100 * process["system_seconds"] / process["seconds"]
                self.assert_rounded(node["sys_percent"], share, 0.011)

    def test_the_form_is_that_of_the_document(self):
        out = self.good(mpi(3, MPTIO, "-f", "1M", "-b", "256K", "-t", "4", "-k", "1", "-k", "2", "-k", "4",
                            "-d", self.dir)).out

        def form(text):
            """Words, with each number as N, up to the end of the node details."""
            lines = [re.sub(r"-{3,}", "---", " ".join(line.split())) for line in text.splitlines()]
            lines = [re.sub(r"\d+(\.\d+)?", "N", line) for line in lines if line]
            return lines[:max(i for i, line in enumerate(lines) if line.startswith("|---")) + 1]

        self.assertEqual(form(out), form(SAMPLE))

    @every_mpi
    def test_a_named_report_and_its_time(self):
        base = os.path.join(self.aside, "gfs")
        job = self.good(mpi(2, MPTIO, "-f", "8K", "-b", "1K", "-t", "2", "-d", self.dir, "-N", base))
        self.assertEqual(job.out, "")
        names = glob.glob(base + "*")
        self.assertEqual(len(names), 1)
        self.assertRegex(names[0], r"/gfs_\d{8}_\d{6}$")
        self.assertIn("Seq_Write", self.summary(names[0]))

    def test_the_result_of_json_is_that_of_the_report(self):
        path = os.path.join(self.aside, "result.json")
        words = [MPTIO, "-P", "-f", "64000", "-b", "1K", "-t", "2", "-k", "2", "-r", "-d", self.dir, "--json", path]
        report = json.loads(self.summary("--json", text=self.good(mpi(2, *words)).out))[0]
        with open(path, encoding="ascii") as file:
            whole = json.load(file)
        self.assertEqual((whole["program"], whole["command"][1:]), ("mptio", words[1:]))
        self.assertEqual(whole["options"], {
            "f": 64000, "F": 0, "b": 1024, "s": 0, "t": 2, "a": 0, "N": None, "d": self.dir, "U": False, "r": True,
            "I": False, "K": False, "C": False, "plan": False, "json": path})
        self.assertEqual((whole["mode"], whole["devices"], whole["directory"]), ("process", [], self.dir))
        self.assertEqual((whole["overlap_processes"], whole["overlap_threads"]), (False, False))
        self.assertEqual((whole["processes"], whole["threads_per_process"], whole["records_per_thread"],
                          whole["record_bytes"], whole["offset"], whole["bytes_per_process"]), (2, 2, 31, 1024, 0, 62 * 1024))
        self.assertEqual(whole["notes"], report["notes"])
        self.assertEqual(len(whole["notes"]), 1)
        self.assertEqual([one["test"] for one in whole["results"]], [test["test"] for test in report["tests"]])
        self.assertEqual([one["rotations"] for one in whole["results"]], [0, 1, 2, 3])
        for one, test in zip(whole["results"], report["tests"], strict=True):
            raw = one["processes"]
            self.assertEqual([process["process"] for process in raw], [0, 1])
            for process, printed in zip(raw, test["raw"], strict=True):
                for key in ("bytes", "seconds", "system_seconds", "elapsed_seconds"):
                    self.assertAlmostEqual(process[key], printed[key], delta=1e-6)
            self.assertEqual(one["bytes"], sum(process["bytes"] for process in raw))
            self.assertEqual(one["seconds"], max(process["seconds"] for process in raw))
            self.assertEqual(one["elapsed_seconds"], max(process["elapsed_seconds"] for process in raw))
            for key in ("rate_mb_s", "e_rate_mb_s", "dtvar_percent"):
                self.assert_rounded(test[key], one[key])

    def test_no_result_of_a_run_that_fails(self):
        path = os.path.join(self.aside, "result.json")
        words = [MPTIO, "-f", "64K", "-b", "1K", "-t", "2", "-d", self.dir, "--json", path]
        self.bad(mpi(2, *words, "-k", "0"), "File does not exist")
        self.assertFalse(glob.glob(path + "*"))
        # Nor if it ran well, and the report cannot be written.
        self.bad(["sh", "-c", 'exec "$0" "$@" >/dev/full', *words], "cannot write the report to standard output: No space")
        self.assertFalse(glob.glob(path + "*"))
        self.bad(mpi(2, *words[:-1], "/nonexistent/file"), "process 0: cannot make the result /nonexistent/file.part")
        self.assertEqual(os.listdir(self.dir), [])

    def test_notes_say_what_was_adjusted(self):
        device = os.path.join(self.aside, "dev")
        with open(device, "wb") as file:
            file.truncate(MIB)
        out = self.good(mpi(1, MPTIO, "-R", device, "-f", "10000", "-b", "1000", "-t", "3", "-r")).out
        self.assertIn("Note: record size 1024 and offset 0,", out)
        self.assertIn("Note: 9216 bytes per process instead of 10000,", out)
        self.assertIn("Note: -r: there is one process", out)
        out = self.good(mpi(2, MPTIO, "-f", "8K", "-b", "1K", "-t", "2", "-d", self.dir)).out
        self.assertNotIn("Note:", out)

    def test_direct_io_is_asked_for_and_its_refusal_noted(self):
        # ramfs has no direct I/O, tmpfs has: the same job in both.
        words = mpi(2, MPTIO, "-f", "16K", "-b", "4K", "-t", "2", "-d", self.dir, "-I", "-C")
        ramfs = self.good(in_own_mounts(f"mount -t ramfs none '{self.dir}'", words)).out
        tmpfs = self.good(in_own_mounts(f"mount -t tmpfs none '{self.dir}'", words)).out
        self.assertIn("Note: -I: O_DIRECT was refused in 2 of 2 processes", ramfs)
        self.assertNotIn("O_DIRECT", tmpfs)

    def test_mptsum_of_the_documents_sample(self):
        report = json.loads(self.summary("--json", text=SAMPLE))[0]
        self.assertEqual((report["size_mb"], report["recsz_kb"], report["num_proc"], report["tot_thrd"]),
                         (200, 256, 3, 12))
        write, read = report["tests"]
        self.assertEqual((write["rate_mb_s"], write["e_time_s"], write["dtvar_percent"]), (9.17, 65.44, 1.09))
        self.assertEqual(read["nodes"][1], {"rate_mb_s": 32.59, "time_s": 6.14, "sys_percent": 34.87})
        rows = list(csv.DictReader(io.StringIO(self.summary("--csv", text=SAMPLE))))
        self.assertEqual([(row["test"], row["e_rate_mb_s"], row["thrd_per_proc"]) for row in rows],
                         [("Seq_Write", "9.17", "4"), ("Seq_Read", "88.43", "4")])
        table = self.summary(text=SAMPLE).splitlines()
        self.assertEqual(table[2].split()[1:], "3 4 200 256 Seq_Write 9.17 9.17 65.44 1.09".split())
        self.assertEqual(len(table), 4)

    def test_mptsum_of_many_reports(self):
        paths = []
        for name in ("one", "two"):
            paths.append(os.path.join(self.aside, name))
            with open(paths[-1], "w", encoding="ascii") as file:
                file.write(SAMPLE)
        self.assertEqual(len(self.summary(*paths).splitlines()), 2 + 4)
        self.assertEqual(len(json.loads(self.summary("--json", *paths))), 2)

    def test_mptsum_refuses_what_is_no_report(self):
        cut = SAMPLE[:SAMPLE.index("Test Name")]
        broken = SAMPLE.replace("9.17 65.44", "9.17")
        for text in ("", "hello\n", cut, broken, SAMPLE.replace("88.43 6.79", "88.43 x")):
            path = os.path.join(self.aside, "bad")
            with open(path, "w", encoding="ascii") as file:
                file.write(text)
            job = run([MPTSUM, path])
            self.assertEqual((job.code, job.out, len(job.err.splitlines())), (1, "", 1), job)
        self.bad([MPTSUM, self.aside + "/none"], "No such file")
