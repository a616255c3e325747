#!/usr/bin/env python3
"""All tests of the benchmark programs in one place with one MPI: `make test`. Arguments are names, as unittest
takes them; --every-mpi: only tests that are marked so; --on-mount: none that no file system changes; --at-once N:
so many tests at a time (as many as there are processors). TMPDIR is the place; BUILD_DIR and MPIEXEC say which
programs, and what starts them.

Tests run in workers: processes of this program that take one name after another. What a test leaves in its process
(handles, a signal, its death) cannot reach the list of what has been tested."""

import argparse
import collections
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
SLOWEST_SHOWN = 3
# Seconds that a worker has for its end when all are interrupted.
END_SECONDS = 15
# Parts of names of tests that do not run on a mount, because no file system changes them.
LOCAL_ONLY = (
    # The report tool runs the programs; netio has no files; mptsum and the reports' arithmetic have none either.
    "test_report.", "test_netio.", "test_mptio_report.", "test_gpfsio.Figures.", "test_popio.Popio.test_figures", "mptsum",
    # Refused before it is looked at where, or not by the file system under test.
    "make_no_sense", "help_names", "started_differently", "cannot_be_written", "a_server_that_ends",
    # On a tmpfs, a ramfs or a block device of their own.
    "a_full_file_system", "a_read_only_file_system", "tmpfs_and_ramfs", "direct_io_sync_and_forget", "device",
    # The disk lies to the program, whatever disk it is.
    "is_found_wherever_it_is", "a_flipped_byte", "a_wrong_byte", "a_wrong_read_and_a_lost_write",
    # The same bytes as other tests that stay: of the document's sizes in small, and 9188 files of an archive.
    "test_hostile.Traces.", "untar_of_its_own_archive",
)

Done = collections.namedtuple("Done", "name seconds problems")


def tests_of(suite):
    """The tests of a suite, without its branches."""
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from tests_of(item)
        else:
            yield item


def is_marked(test, mark):
    return getattr(getattr(test, test._testMethodName), mark, False)


def check_launcher():
    """Programs of one MPI under the mpiexec of another are many jobs of one process each: one message tells."""
    import harness

    with tempfile.TemporaryDirectory() as directory:
        job = harness.run(harness.mpi(2, harness.program("mptio"), "--plan", "-f", "1K", "-b", "1K", "-t", "1",
                                      "-k", "1", "-k", "2", "-k", "3", "-k", "4", "-d", directory))
    if [line.split()[1] for line in job.out.splitlines()] != ["0", "1"]:
        sys.exit(f"{harness.MPIEXEC[0]} does not start jobs of two processes of {harness.BUILD}/mptio. Do both belong "
                 f"to the same MPI? (MPI=mpich and MPI=openmpi choose)\n{job}")


def run_one(name):
    """Runs a test in this process; what is wrong with it, as texts. A test that is skipped has not been done."""
    suite = unittest.TestLoader().loadTestsFromName(name)
    result = unittest.TextTestRunner(stream=io.StringIO(), resultclass=unittest.TextTestResult).run(suite)
    problems = [text for _, text in result.failures + result.errors]
    problems += [f"skipped: {reason}" for _, reason in result.skipped]
    if not problems and not (result.wasSuccessful() and result.testsRun == 1):
        problems.append(f"not run as one test that passes: {result}")
    return problems


def work():
    """A worker: names come line by line, and what came of them goes back the same way, to where nobody else prints."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    for line in sys.stdin:
        answers.write(json.dumps(run_one(line.strip())) + "\n")
        answers.flush()


class Workers:
    """Runs tests `count` at a time."""

    def __init__(self, names, count):
        self.left = collections.deque(names)
        self.done = []
        self.stops = False
        words = [sys.executable, os.path.abspath(__file__), "--worker"]
        self.processes = [subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                          for _ in range(min(count, len(names)))]
        self.threads = [threading.Thread(target=self.feed, args=(process,)) for process in self.processes]

    def feed(self, process):
        """One worker, as long as there are tests and it lives."""
        while not self.stops:
            try:
                name = self.left.popleft()
            except IndexError:
                break
            begin = time.monotonic()
            try:
                process.stdin.write(name + "\n")
                process.stdin.flush()
                answer = process.stdout.readline()
            except BrokenPipeError:
                answer = ""
            if self.stops:
                break
            # One that died has failed the test; the others do the rest.
            problems = json.loads(answer) if answer else [f"the process of the test died: {process.wait()}"]
            self.done.append(Done(name, time.monotonic() - begin, problems))
            print("F" if problems else ".", end="", file=sys.stderr, flush=True)
            if not answer:
                break

    def run(self):
        """What was done. Interrupted: all workers have ended, with their jobs and directories."""
        for thread in self.threads:
            thread.start()
        try:
            for thread in self.threads:
                thread.join()
        finally:
            self.end()
        return self.done

    def end(self):
        self.stops = True
        is_idle = not any(thread.is_alive() for thread in self.threads)
        for process in self.processes:
            # Idle ones see the end of their names, busy ones end what they do.
            if is_idle:
                process.stdin.close()
            else:
                process.terminate()
        for process in self.processes:
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for thread in self.threads:
            thread.join()


def run_tests(tests, at_once):
    """All of them, those that must be alone at the end."""
    done = []
    for is_alone, count in ((False, at_once), (True, 1)):
        names = [test.id() for test in tests if is_marked(test, "must_be_alone") == is_alone]
        if names:
            done += Workers(names, count).run()
    return done


def report(done, tests, seconds):
    """Prints what came of the tests; whether all have passed."""
    print(file=sys.stderr)
    for name, _, problems in sorted(done):
        for problem in problems:
            print(f"{'=' * 70}\nFAILED: {name}\n{problem}", file=sys.stderr)
    missing = sorted({test.id() for test in tests} - {one.name for one in done})
    for name in missing:
        print(f"not run: {name}", file=sys.stderr)
    slowest = sorted(done, key=lambda one: -one.seconds)[:SLOWEST_SHOWN]
    print(f"{len(done)} tests in {seconds:.1f} s, {sum(bool(one.problems) for one in done)} failed; slowest: "
          + ", ".join(f"{one.name} {one.seconds:.1f} s" for one in slowest), file=sys.stderr)
    return bool(done) and not missing and not any(one.problems for one in done)


def choose(arguments):
    """The tests; None: some cannot be loaded, and it has said why."""
    loader = unittest.TestLoader()
    suite = (loader.loadTestsFromNames(arguments.names) if arguments.names
             else loader.discover(HERE, top_level_dir=HERE))
    if loader.errors:
        print("\n".join(loader.errors), file=sys.stderr)
        return None
    return [test for test in tests_of(suite)
            if (not arguments.every_mpi or is_marked(test, "is_for_every_mpi"))
            and not (arguments.on_mount and any(part in test.id() for part in LOCAL_ONLY))]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every-mpi", action="store_true")
    parser.add_argument("--on-mount", action="store_true")
    parser.add_argument("--at-once", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--durations", help="writes the seconds of each test to this file")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    # As if interrupted: jobs are ended, and directories removed.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    sys.path.insert(0, HERE)
    if arguments.worker:
        work()
        return 0
    check_launcher()
    tests = choose(arguments)
    if tests is None:
        return 1
    begin = time.monotonic()
    done = run_tests(tests, arguments.at_once)
    is_good = report(done, tests, time.monotonic() - begin)
    if arguments.durations:
        with open(arguments.durations, "w", encoding="ascii") as file:
            file.writelines(f"{one.seconds:7.2f} {one.name}\n" for one in sorted(done, key=lambda one: -one.seconds))
    return 0 if is_good else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("interrupted")
