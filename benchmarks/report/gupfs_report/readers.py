"""Reads what the programs report: a dictionary of values by name, each in the unit that the experiments expect.

A report that is not complete is no result: BadReport says what is missing.
"""

import json
import math
import subprocess

from gupfs_report import Failure

MIB = 1 << 20


class BadReport(Exception):
    """What a program printed is no complete report, and why."""


def read(job, done, build):
    """The values of a run."""
    values = READERS[job.program](done, build)
    if not values:
        raise BadReport("there is no value in it")
    for name, value in values.items():
        if not math.isfinite(value) or value <= 0:
            raise BadReport(f"{name} is {value}")
    return values


def mptio(done, build):
    """Rate of each test, MB/s, as mptsum reads the report: bytes over the longest time of a process."""
    try:
        summed = subprocess.run([f"{build}/mptsum", "--json", "-"], input=done.stdout, capture_output=True, text=True,
                                timeout=60, check=False)
    except OSError as error:
        raise Failure(f"{build}/mptsum: {error.strerror}: run `make benchmarks`") from error
    if summed.returncode != 0:
        raise BadReport(summed.stderr.strip())
    values = {}
    for test in json.loads(summed.stdout)[0]["tests"]:
        raw = test.get("raw")
        if not raw:
            raise BadReport(f"{test['test']} has no raw times")
        values[test["test"]] = sum(row["bytes"] for row in raw) / max(row["seconds"] for row in raw) / MIB
    return values


def metabench(done, _build):
    """Aggregate rate of each test, files/s: all files over the time from barrier to barrier."""
    values = {}
    lines = done.stdout.splitlines()
    try:
        at = next(index for index, line in enumerate(lines) if line.split()[:2] == ["Test", "Num_proc"])
    except StopIteration:
        raise BadReport("no table of tests") from None
    for line in lines[at + 2:]:
        fields = line.split()
        if not fields:
            break
        if len(fields) != 5:
            raise BadReport(f"the line of a test has {len(fields)} fields: {line!r}")
        values[fields[0]] = float(fields[2]) / float(fields[3])
    if not any(line.startswith("Command:") for line in lines):
        raise BadReport("it ends too early")
    return values


READERS = {"mptio": mptio, "metabench": metabench}
