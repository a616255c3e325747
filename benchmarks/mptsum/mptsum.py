#!/usr/bin/env python3
"""mptsum: the short form of one or many reports of mptio (table, CSV or JSON)."""

import argparse
import csv
import json
import re
import sys

HEADER = ["Size (MB)", "Recsz (KB)", "Num_proc", "Thrd/proc", "Tot_thrd", "Rec/proc", "Rec/th"]
TESTS = ["Test Name", "Recsz", "Tot_thrd", "Rate MB/s", "E-Rate", "E-Time", "%DtVar"]
HEADER_KEYS = ["size_mb", "recsz_kb", "num_proc", "thrd_per_proc", "tot_thrd", "rec_per_proc", "rec_per_thread"]
TEST_KEYS = ["rate_mb_s", "e_rate_mb_s", "e_time_s", "dtvar_percent"]
NODE_KEYS = ["rate_mb_s", "time_s", "sys_percent"]
RAW_KEYS = ["bytes", "seconds", "system_seconds", "elapsed_seconds"]
COLUMNS = ["report"] + HEADER_KEYS + ["test"] + TEST_KEYS
# Of the table, which is for people: what differs between runs.
SHORT = ["report", "num_proc", "thrd_per_proc", "size_mb", "recsz_kb", "test"] + TEST_KEYS
TITLES = ["Report", "Num_proc", "Thrd/proc", "Size(MB)", "Recsz(KB)", "Test", "Rate", "E-Rate", "E-Time", "%DtVar"]


class BadReport(Exception):
    """The text is no report of mptio, and why."""


def number(text):
    """An int where it is one, else a float."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        raise BadReport(f"{text!r} is not a number") from None


def is_title(line, words):
    return " ".join(line.split()) == " ".join(words)


def find(lines, words):
    """Index of the line with this title, the rule below it skipped."""
    for index, line in enumerate(lines):
        if is_title(line, words):
            index += 1
            while index < len(lines) and set(lines[index].strip()) <= {"-", " "}:
                index += 1
            return index
    raise BadReport(f"no line {' '.join(words)!r}")


def read_header(lines):
    index = find(lines, HEADER)
    fields = lines[index].split() if index < len(lines) else []
    if len(fields) != len(HEADER_KEYS):
        raise BadReport("the line of the parameters is incomplete")
    return dict(zip(HEADER_KEYS, map(number, fields)))


def read_tests(lines):
    tests = []
    for line in lines[find(lines, TESTS):]:
        fields = line.split()
        if not fields:
            break
        if len(fields) != 3 + len(TEST_KEYS):
            raise BadReport(f"the line of a test has {len(fields)} fields: {line!r}")
        tests.append({"test": fields[0], **dict(zip(TEST_KEYS, map(number, fields[3:])))})
    if not tests:
        raise BadReport("no test in it")
    return tests


def read_nodes(lines, tests):
    """Adds `nodes` to each test: rate, time and %Sys of each process."""
    for test in tests:
        test["nodes"] = []
    for line in lines:
        match = re.fullmatch(r"\|\s*\d+\s*\|(.*)\|", line.strip())
        if not match:
            continue
        cells = [cell.split() for cell in match.group(1).split("|")]
        if len(cells) != len(tests) or any(len(cell) != len(NODE_KEYS) for cell in cells):
            raise BadReport(f"the line of a node does not fit the tests: {line!r}")
        for test, cell in zip(tests, cells):
            test["nodes"].append(dict(zip(NODE_KEYS, map(number, cell))))


def read_raw(lines, tests):
    """Adds `raw` to each test, where the report has it."""
    if "RAW TIMES" not in lines:
        return
    by_name = {test["test"]: test for test in tests}
    for line in lines[lines.index("RAW TIMES") + 1:]:
        if not line.strip():
            break
        if line.startswith("#"):
            continue
        name, _process, *fields = line.split()
        if name not in by_name or len(fields) != len(RAW_KEYS):
            raise BadReport(f"a raw time that belongs to no test: {line!r}")
        by_name[name].setdefault("raw", []).append(dict(zip(RAW_KEYS, map(number, fields))))


def read_report(name, text):
    """One report as a dictionary. BadReport: it is none."""
    lines = [line.rstrip() for line in text.splitlines()]
    report = {"report": name, **read_header(lines), "tests": read_tests(lines)}
    read_nodes(lines, report["tests"])
    read_raw(lines, report["tests"])
    report["command"] = next((line[8:].strip() for line in lines if line.startswith("Command:")), None)
    report["notes"] = [line[5:].strip() for line in lines if line.startswith("Note:")]
    return report


def rows(reports):
    for report in reports:
        for test in report["tests"]:
            yield {**{key: report[key] for key in ["report"] + HEADER_KEYS}, **test}


def write_table(reports, out):
    def text(key, value):
        return f"{value:.2f}" if key in TEST_KEYS else str(value)

    table = [TITLES] + [[text(key, row[key]) for key in SHORT] for row in rows(reports)]
    widths = [max(map(len, column)) for column in zip(*table)]
    for index, line in enumerate(table):
        cells = [cell.ljust(width) if key in ("report", "test") else cell.rjust(width)
                 for key, cell, width in zip(SHORT, line, widths)]
        out.write("  ".join(cells).rstrip() + "\n")
        if index == 0:
            out.write("  ".join("-" * width for width in widths) + "\n")


def write_csv(reports, out):
    writer = csv.DictWriter(out, COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows(reports))


def write_json(reports, out):
    json.dump(reports, out, indent=2)
    out.write("\n")


def main():
    parser = argparse.ArgumentParser(
        prog="mptsum", description="The short form of reports of mptio: one line for each test.",
        epilog="--json also has the times of each process, the command and the notes.")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--table", action="store_const", const=write_table, dest="write", help="for people (default)")
    form.add_argument("--csv", action="store_const", const=write_csv, dest="write", help="comma separated values")
    form.add_argument("--json", action="store_const", const=write_json, dest="write", help="everything")
    parser.add_argument("reports", nargs="*", help="files; none, or -: standard input")
    arguments = parser.parse_args()
    reports = []
    for name in arguments.reports or ["-"]:
        try:
            if name == "-":
                text = sys.stdin.read()
            else:
                with open(name, encoding="utf-8") as file:
                    text = file.read()
            reports.append(read_report(name, text))
        except (BadReport, OSError, UnicodeDecodeError) as error:
            sys.stderr.write(f"mptsum: {name}: {error}\n")
            return 1
    (arguments.write or write_table)(reports, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
