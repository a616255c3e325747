#!/usr/bin/env python3
"""All tests of the benchmark programs wherever they must work: with MPICH in a local directory and on a GUPFS mount,
and with Open MPI. `make test-everywhere GUPFS=path/of/gupfs`; arguments are names of tests, as run.py takes them."""

import argparse
import collections
import os
import shutil
import signal
import subprocess
import sys
import time

from gupfs_mount import Mount, MountError

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(HERE)
# Seconds that a round has for its end when it is interrupted.
END_SECONDS = 20

# The second MPI runs the tests of what an MPI does itself (harness.every_mpi): it takes three times as long for a job.
Round = collections.namedtuple("Round", "name mpi is_on_gupfs words variables")
# On the mount each process is told that it is on a node of its own, as on a cluster. It saves time as well: MPICH
# starts the processes of one node with a barrier that spins, and there are more of them than processors.
ROUNDS = [Round("MPICH, local directory", "mpich", False, [], {}),
          Round("MPICH, GUPFS mount", "mpich", True, ["--on-mount"], {"MPIR_CVAR_NOLOCAL": "1"}),
          Round("Open MPI, local directory", "openmpi", False, ["--every-mpi"], {})]


def build(mpi):
    """The programs of one MPI, in a directory of their own."""
    for program in (f"mpicc.{mpi}", f"mpiexec.{mpi}"):
        if shutil.which(program) is None:
            sys.exit(f"{program} is missing: the tests need MPICH and Open MPI side by side, as Debian installs them "
                     "(.ci/tools does). `make test` tests with the one that is there")
    subprocess.run(["make", "--no-print-directory", "--silent", "-C", TOP, f"MPI={mpi}"], check=True)


def environment(one, place):
    variables = {**os.environ, "BUILD_DIR": os.path.join(TOP, "build", one.mpi), "MPIEXEC": f"mpiexec.{one.mpi}",
                 **one.variables}
    variables.pop("TMPDIR", None)
    if place is not None:
        variables["TMPDIR"] = place
    return variables


def run_tests(one, place, names):
    """Whether all passed."""
    child = subprocess.Popen([sys.executable, os.path.join(HERE, "run.py"), *one.words, *names],
                             env=environment(one, place))
    try:
        return child.wait() == 0
    except BaseException:
        # It ends its jobs, so that nothing works in the place any more.
        child.terminate()
        try:
            child.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        raise


def run_round(one, gupfs, names):
    if not one.is_on_gupfs:
        return run_tests(one, None, names)
    with Mount(gupfs) as mount:
        is_good = run_tests(one, mount.point, names)
        if not is_good:
            print(mount.log(), file=sys.stderr)
        return is_good


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gupfs", required=True, help="the program gupfs, which makes the mount")
    parser.add_argument("--round", action="append", type=int, choices=range(1, len(ROUNDS) + 1),
                        help="only this one: " + ", ".join(f"{i} {one.name}" for i, one in enumerate(ROUNDS, 1)))
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    # As if interrupted: what was made is taken down.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    rows = []
    rounds = [one for i, one in enumerate(ROUNDS, 1) if i in (arguments.round or range(1, len(ROUNDS) + 1))]
    for mpi in sorted({one.mpi for one in rounds}):
        build(mpi)
    for one in rounds:
        print(f"==> {one.name}", file=sys.stderr, flush=True)
        begin = time.monotonic()
        try:
            is_good = run_round(one, arguments.gupfs, arguments.names)
        except MountError as error:
            print(error, file=sys.stderr)
            is_good = False
        rows.append((one.name, time.monotonic() - begin, is_good))
    for name, seconds, is_good in rows:
        print(f"{name:28} {seconds:6.1f} s  {'passed' if is_good else 'FAILED'}", file=sys.stderr)
    return 0 if all(is_good for _, _, is_good in rows) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("interrupted")
