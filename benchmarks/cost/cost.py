#!/usr/bin/env python3
"""What the benchmark programs cost against what they measure: `make cost-benchmarks`.

On a tmpfs of its own, in alternating runs: mptio against fio with the same pattern and against a plain loop of the
same system calls, metabench against such a loop. Prints medians, and the ratios of neighbouring runs with their
spread; a ratio below its bound is marked. What else runs on the machine shows in the spread; `nice -n -20` helps."""

import argparse
import collections
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "tests"))
from harness import BUILD, KIB, MIB, mpi, program  # noqa: E402

LOOPS = program("loops")
# Short enough that some runs are left alone by what else the machine does, long for clocks of milliseconds.
FILE_BYTES = 1 << 28
FILES = 50_000
TMPFS_BYTES = 2 << 30
# The rate of a program must not be lower than this share of what it is measured against. The plain loop of reads and
# writes has no threads, for which the kernel counts users of the open file at each call: a figure without a bound.
IO_BOUND, METADATA_BOUND = 0.95, 0.90

# What is compared: (rates of the program, of the other), in the order of the runs.
Row = collections.namedtuple("Row", "name unit other bound own_rates other_rates")


def output(words, **more):
    job = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, text=True, check=False, **more)
    if job.returncode != 0:
        sys.exit(f"fails: {' '.join(map(str, words))}")
    return job.stdout


def loop(*words):
    """Seconds of a plain loop."""
    return float(output([LOOPS, *words]))


def mptio(directory, record, threads):
    """{test: MB/s} of sequential write and read, from the raw times, by one process."""
    report = output(mpi(1, program("mptio"), "-G", "-f", FILE_BYTES, "-b", record, "-t", threads, "-k", 1, "-k", 2,
                        "-k", 4, "-d", directory))
    lines = report[report.index("RAW TIMES"):].splitlines()[2:4]
    return {words[0]: int(words[2]) / MIB / float(words[3]) for words in (line.split() for line in lines)}


def fio(directory, record, threads, direction):
    """MB/s: the same calls on the same regions, without what fio does in addition where it can be told."""
    words = ["fio", "--output-format=json", "--name=cost", f"--filename={directory}/File", f"--rw={direction}",
             f"--bs={record}", f"--size={FILE_BYTES // threads}", f"--offset_increment={FILE_BYTES // threads}",
             f"--numjobs={threads}", "--thread", "--group_reporting", "--ioengine=sync", "--fallocate=none",
             "--scramble_buffers=0", "--gtod_reduce=1", "--invalidate=0", "--randrepeat=1"]
    side = json.loads(output(words))["jobs"][0][direction]
    assert side["io_bytes"] == FILE_BYTES, side
    return side["io_bytes"] / MIB / (side["runtime"] / 1e3)


def pattern_name(record, threads):
    return f"{record // KIB} KB, {threads} thread{'s' if threads > 1 else ''}"


def io_runs(directory, record, threads, count):
    """Rows of mptio against the others."""
    others = ["fio"] + (["loop"] if threads == 1 else [])
    rates = {(test, who): [] for test in ("Seq_Write", "Seq_Read") for who in ["mptio", *others]}
    path = os.path.join(directory, "File")
    for _ in range(count):
        for test, rate in mptio(directory, record, threads).items():
            rates[test, "mptio"].append(rate)
        for who in others:
            for test, direction in (("Seq_Write", "write"), ("Seq_Read", "read")):
                if who == "fio":
                    rates[test, who].append(fio(directory, record, threads, direction))
                else:
                    rates[test, who].append(FILE_BYTES / MIB / loop(direction, path, FILE_BYTES, record))
            os.unlink(path)
    name = pattern_name(record, threads)
    return [Row(f"mptio {test}, {name}", "MB/s", who, IO_BOUND if who == "fio" else None, rates[test, "mptio"], rates[test, who])
            for test in ("Seq_Write", "Seq_Read") for who in others]


def metabench(directory):
    """{test: files/s}: of one process alone, by its own time."""
    report = output(mpi(1, program("metabench"), "-CSk", "-c", FILES, "-f", FILES, "-w", directory))
    lines = iter(report[report.index("PROCESS DETAILS"):].splitlines())
    next(line for line in lines if line.startswith("---"))
    rows = [line.split() for line in itertools.takewhile(str.strip, lines)]
    return {row[0]: int(row[2]) / float(row[3]) for row in rows}


def metadata_runs(directory, count):
    tests = {"Create-A": "create", "Create-B": "create", "Stat-A": "stat"}
    own = {test: [] for test in tests}
    other = {"create": [], "stat": []}
    for _ in range(count):
        rates = metabench(directory)
        for test in tests:
            own[test].append(rates[test])
        path = os.path.join(directory, "loop")
        os.mkdir(path)
        for what in ("create", "stat"):
            other[what].append(FILES / loop(what, path, FILES))
        shutil.rmtree(path)
    return [Row(f"metabench {test}", "files/s", "loop", METADATA_BOUND, own[test], other[what])
            for test, what in tests.items()]


def show(row):
    ratios = [own / other for own, other in zip(row.own_rates, row.other_rates, strict=True)]
    first, ratio, third = statistics.quantiles(ratios, n=4)
    verdict = "" if row.bound is None or ratio >= row.bound else f"  BELOW {row.bound:.2f}"
    own, other = statistics.median(row.own_rates), statistics.median(row.other_rates)
    print(f"{row.name:34} {own:9.0f}  {row.other:5} {other:9.0f} {row.unit:8} {ratio:6.3f}  ({first:.2f} to {third:.2f})"
          f"{verdict}", flush=True)


def in_own_tmpfs():
    """Runs this program again where it has a tmpfs that nobody else sees and that ends with it."""
    directory = tempfile.mkdtemp(prefix="gupfs-cost.")
    shell = f'mount -t tmpfs -o size={TMPFS_BYTES} none "{directory}" && exec "$0" "$@"'
    words = ["unshare", "--mount", "sh", "-c", shell, sys.executable, os.path.abspath(__file__), "--in", directory]
    try:
        return subprocess.run(words + sys.argv[1:], check=False).returncode
    finally:
        os.rmdir(directory)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=15, help="of each (default: 15)")
    parser.add_argument("--only", default="", metavar="TEXT", help="rows whose name has TEXT ('2 threads', metabench)")
    parser.add_argument("--in", dest="directory", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.runs < 2:
        parser.error("--runs: a spread needs 2 or more")
    if shutil.which("fio") is None:
        sys.exit("fio is missing: .ci/tools installs it")
    if arguments.directory is None:
        return in_own_tmpfs()
    print(f"{os.uname().release}, {os.cpu_count()} processors, programs of {BUILD}, {arguments.runs} alternating runs\n"
          "Medians of each; the median of the ratios of neighbouring runs, and where the middle half of these is")
    for record, threads in ((256 * KIB, 1), (MIB, 1), (256 * KIB, 2), (4 * KIB, 1)):
        if arguments.only in f"mptio {pattern_name(record, threads)}":
            for row in io_runs(arguments.directory, record, threads, arguments.runs):
                show(row)
    if arguments.only in "metabench":
        for row in metadata_runs(arguments.directory, arguments.runs):
            show(row)
    return 0


if __name__ == "__main__":
    sys.exit(main())
