#!/usr/bin/env python3
"""All tests of the benchmark programs in one place with one MPI: `make test`. Arguments are names, as unittest
takes them; --every-mpi: only tests that are marked so; --on-mount: none that no file system changes. TMPDIR is the
place; BUILD_DIR and MPIEXEC say which programs, and what starts them."""

import os
import signal
import sys
import tempfile
import time
import unittest

SLOWEST_SHOWN = 3
# Parts of names of tests that no file system changes: the report tool runs the programs, netio has no files, and a
# command line is refused before it is looked at where.
LOCAL_ONLY = ("test_report.", "test_netio.", "make_no_sense", "help_names", "mptsum")


class Result(unittest.TextTestResult):
    """Remembers how long each test took."""

    def __init__(self, *arguments, **more):
        super().__init__(*arguments, **more)
        self.begin = 0.0
        self.seconds = {}

    def startTest(self, test):
        super().startTest(test)
        self.begin = time.monotonic()

    def stopTest(self, test):
        super().stopTest(test)
        self.seconds[test.id()] = time.monotonic() - self.begin

    def slowest(self):
        first = sorted(self.seconds.items(), key=lambda item: -item[1])[:SLOWEST_SHOWN]
        return ", ".join(f"{name} {seconds:.1f} s" for name, seconds in first)


def tests_of(suite):
    """The tests of a suite, without its branches."""
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from tests_of(item)
        else:
            yield item


def is_for_every_mpi(test):
    # What could not be loaded is no test of ours: it runs, and says why.
    method = getattr(test, getattr(test, "_testMethodName", ""), None)
    return getattr(method, "is_for_every_mpi", False) or isinstance(test, unittest.loader._FailedTest)


def check_launcher():
    """Programs of one MPI under the mpiexec of another are many jobs of one process each: one message tells."""
    import harness

    with tempfile.TemporaryDirectory() as directory:
        job = harness.run(harness.mpi(2, harness.program("mptio"), "--plan", "-f", "1K", "-b", "1K", "-t", "1",
                                      "-k", "1", "-k", "2", "-k", "3", "-k", "4", "-d", directory))
    if [line.split()[1] for line in job.out.splitlines()] != ["0", "1"]:
        sys.exit(f"{harness.MPIEXEC[0]} does not start jobs of two processes of {harness.BUILD}/mptio. Do both belong "
                 f"to the same MPI? (MPI=mpich and MPI=openmpi choose)\n{job}")


def main(names):
    # As if interrupted: jobs are ended, and directories removed.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path.insert(0, here)
    check_launcher()
    only_marked, is_on_mount = "--every-mpi" in names, "--on-mount" in names
    names = [name for name in names if name not in ("--every-mpi", "--on-mount")]
    loader = unittest.TestLoader()
    suite = loader.loadTestsFromNames(names) if names else loader.discover(here, top_level_dir=here)
    if only_marked:
        suite = unittest.TestSuite(test for test in tests_of(suite) if is_for_every_mpi(test))
    if is_on_mount:
        suite = unittest.TestSuite(test for test in tests_of(suite) if not any(part in test.id() for part in LOCAL_ONLY))
    result = unittest.TextTestRunner(verbosity=1, resultclass=Result).run(suite)
    print(f"slowest: {result.slowest()}", file=sys.stderr)
    # Nothing is skipped: what cannot run has not been tested.
    return 0 if result.wasSuccessful() and not result.skipped and result.testsRun > 0 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
