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


def version(done):
    """The version that a program with --json says it has; empty where it says none."""
    try:
        return str(json.loads(done.json).get("version", ""))
    except (ValueError, AttributeError):
        return ""


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


def results(done, program):
    """The results of a program with --json."""
    try:
        whole = json.loads(done.json)
        if whole["program"] != program:
            raise BadReport(f"the JSON is of {whole['program']}")
        return whole["results"]
    except (ValueError, KeyError, TypeError) as error:
        raise BadReport(f"the JSON is not complete: {error!r}") from None


def gpfsio(done, _build):
    """Rate of write and read, MB/s: all bytes from the first start of a thread to the last end of one."""
    values = {}
    for test in results(done, "gpfsio"):
        spans = [thread for process in test["processes"] for thread in process["threads"]]
        seconds = max(span["end_seconds"] for span in spans) - min(span["start_seconds"] for span in spans)
        if test["operation"] in values:
            raise BadReport(f"{test['operation']} is there twice")
        values[test["operation"]] = test["bytes"] / seconds / MIB
    return values


def pioraw(done, _build):
    """Rate of each operation and number of blocks, MB/s: the volume of all over the longest time of one."""
    values = {}
    for test in results(done, "pioraw"):
        processes = test["raw"]
        seconds = max(process["seconds"] for process in processes)
        values[f"{test['operation']} {test['blocks']}"] = sum(process["bytes"] for process in processes) / seconds / MIB
    return values


def popio(done, _build):
    """Rate of each method, MB/s: all bytes over the longest time from barrier to barrier."""
    values = {}
    for test in results(done, "popio"):
        if test["what"] == "read" and not test["verified"]:
            raise BadReport(f"{test['method']}: what was read was not verified")
        processes = test["processes"]
        seconds = max(process["elapsed_seconds"] for process in processes)
        values[f"{test['method']} {test['what']}"] = sum(process["bytes"] for process in processes) / seconds / MIB
    return values


READERS = {"mptio": mptio, "metabench": metabench, "gpfsio": gpfsio, "pioraw": pioraw, "popio": popio}
