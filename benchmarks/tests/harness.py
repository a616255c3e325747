"""What the tests share: running jobs under mpiexec, traces, plans, and a directory that is always removed."""

import contextlib
import os
import re
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
BUILD = os.environ.get("BUILD_DIR", os.path.join(os.path.dirname(HERE), "build"))
# More processes than processors, none bound to one, and only the programs' own messages.
OPEN_MPI = ["--quiet", "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]
# No job may hang; each takes well below a second on an idle machine.
TIMEOUT_SECONDS = 60

KIB = 1 << 10
MIB = 1 << 20


def local_place():
    """Memory where there is enough of it, or the directory for temporary files."""
    if os.path.isdir("/dev/shm"):
        room = os.statvfs("/dev/shm")
        if room.f_bavail * room.f_frsize >= 1 << 30:
            return "/dev/shm"
    return "/tmp"


def place():
    """What is under test: TMPDIR, or the local place."""
    return os.environ.get("TMPDIR", local_place())


def program(name):
    return os.path.join(BUILD, name)


def launcher():
    """The words that start a job, before `-n`: MPIEXEC or mpiexec, and what its kind of MPI needs here."""
    words = os.environ.get("MPIEXEC", "mpiexec").split()
    try:
        version = subprocess.run([*words, "--version"], capture_output=True, text=True, check=False, timeout=60)
    except OSError as error:
        sys.exit(f"cannot run {words[0]}: {error.strerror}. It starts MPI jobs: install MPICH or Open MPI")
    if "OpenRTE" not in version.stdout and "Open MPI" not in version.stdout:
        return words
    # Tests may run as root.
    os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    return words + OPEN_MPI


MPIEXEC = launcher()
# What Open MPI makes for a job does not belong to the place under test. Jobs share its directory of a user, which one that ends may take away
# while another one begins ("ORTE_ERROR_LOG: Error in file session_dir.c"): each has one of its own. Paths of sockets are short.
SESSIONS = tempfile.TemporaryDirectory(prefix="gm.", dir="/tmp", ignore_cleanup_errors=True)


def every_mpi(test):
    """Marks a test of what an MPI does itself (starting, ending, agreeing, gathering): it runs with each of them."""
    test.is_for_every_mpi = True
    return test


class Job:
    """A job that has ended."""

    def __init__(self, code, out, err):
        self.code = code
        self.out = out
        self.err = err

    def __repr__(self):
        return f"exit {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


def launch(words, env=None, cwd=None):
    """Starts a command in a session of its own, so that all of it can be ended; it ends when the tests are killed."""
    session = tempfile.mkdtemp(prefix="", dir=SESSIONS.name)
    whole = {**os.environ, "OMPI_MCA_orte_tmpdir_base": session, **(env or {})}
    words = ["setpriv", "--pdeathsig", "TERM", *words]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
                            text=True, env=whole, cwd=cwd, start_new_session=True)


def end(job):
    """Ends what is left of a job that was launched."""
    if job.poll() is None:
        os.killpg(job.pid, signal.SIGKILL)
        job.communicate()


def finish(process):
    """Waits for a command; one that hangs is ended and is a failure. It does not outlive the test."""
    try:
        out, err = process.communicate(timeout=TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        try:
            out, err = process.communicate(timeout=TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            out, err = "", "(its output is still held by something that it started)"
        raise AssertionError(f"hangs: {process.args}\n{out}\n{err}") from None
    except BaseException:
        end(process)
        raise
    return Job(process.returncode, out, err)


def run(words, **more):
    return finish(launch(words, **more))


def mpi(processes, *words):
    """One program with so many processes."""
    return MPIEXEC + ["-n", str(processes)] + [str(word) for word in words]


def mpi_with_first(shell, processes, *words):
    """The same, but process 0 runs the shell line `shell` before the program, which it then becomes."""
    words = [str(word) for word in words]
    first = ["-n", "1", "sh", "-c", shell + '; exec "$0" "$@"'] + words
    return MPIEXEC + first + ([":", "-n", str(processes - 1)] + words if processes > 1 else [])


def in_own_mounts(shell, words):
    """A command that sees mounts of its own, made by the shell line `shell`; they end with it."""
    unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]
    return unshare + ["sh", "-c", shell + '; exec "$0" "$@"'] + [str(word) for word in words]


def wait_until(condition, what, seconds=TIMEOUT_SECONDS):
    """Waits for an event that another process makes; a bound, not a delay."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.01)


def rows_of(report, title):
    """The lines of a report between one that begins with `title` (and lines of # and ---) and the next empty one."""
    lines = report.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith(title)) + 1
    rows = []
    for line in lines[at:]:
        if not line.strip():
            break
        rows.append(line.split())
    return [row for row in rows if row[0] != "#" and not row[0].startswith("---")]


def stamps(data):
    """The pattern of -C: (offset word, process, thread, pass) of each 16 bytes."""
    units = struct.iter_unpack("<QQ", data)
    return [(at, word >> 40, word >> 24 & 0xFFFF, word >> 16 & 0xFF) for at, word in units]


class Case(unittest.TestCase):
    """A test with an empty directory `self.dir`, and one for what is not under test, `self.aside`, which is local."""

    maxDiff = None

    def setUp(self):
        self.top = self.make_directory(place())
        self.aside = self.make_directory(local_place())
        self.dir = os.path.join(self.top, "dir")
        os.mkdir(self.dir)

    def make_directory(self, where):
        """A directory that goes at the end of the test, or of all if they are interrupted."""
        made = tempfile.TemporaryDirectory(prefix="gupfs-benchmarks.", dir=where, ignore_cleanup_errors=True)
        self.addCleanup(made.cleanup)
        return made.name

    def good(self, words, **more):
        job = run(words, **more)
        self.assertEqual((job.code, job.err), (0, ""), job)
        return job

    def bad(self, words, pattern, noise=None, **more):
        """The job fails with one line, from one process, that says why. Lines that `noise` matches are the MPI's own."""
        job = run(words, **more)
        self.assertNotEqual(job.code, 0, job)
        lines = [line for line in job.err.splitlines() if noise is None or not re.match(noise, line)]
        self.assertEqual(len(lines), 1, job)
        self.assertRegex(lines[0], pattern)
        return job

    def nothing_left_when_killed(self, processes, words, is_running, what):
        """Process 0 is killed while the job works, which `is_running` tells: the job fails, and the directory is empty."""
        for which in (signal.SIGKILL, signal.SIGTERM):
            own = os.path.join(self.aside, f"pid.{which}")
            job = launch(mpi_with_first(f"echo $$ >'{own}'", processes, *words))
            try:
                wait_until(is_running, what)
                with open(own, encoding="ascii") as file:
                    os.kill(int(file.read()), which)
                self.assertNotEqual(finish(job).code, 0)
            finally:
                end(job)
            try:
                wait_until(lambda: os.listdir(self.dir) == [], "the cleaners have removed everything")
            except AssertionError as error:
                left = [os.path.join(top, name) for top, _, names in os.walk(self.dir) for name in [".", *names]]
                lives = subprocess.run(["ps", "-eo", "pid,ppid,sid,stat,etimes,wchan,args"], capture_output=True, text=True, check=True)
                raise AssertionError(f"{error}: signal {which}, {left[:40]}\n{lives.stdout}") from None

    def loop(self, name, sector, data):
        """A device with sectors of so many bytes, and its file; it goes when this process ends, however it ends."""
        path = os.path.join(self.aside, name)
        with open(path, "wb") as file:
            file.write(data)
        device = self.good(["losetup", "--find", "--show", "--sector-size", str(sector), path]).out.strip()
        handle = os.open(device, os.O_RDONLY)
        self.addCleanup(os.close, handle)
        # While it is open it stays, and is detached by the last close.
        self.good(["losetup", "--detach", device])
        return device, path

    def lie(self, kind, file, offset):
        """The environment of a job whose disk lies about one byte of a file: `kind` as lying_disk.c has it."""
        library = os.path.join(self.aside, "lying_disk.so")
        if not os.path.exists(library):
            source = os.path.join(HERE, "lying_disk.c")
            self.good(["cc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", library, source],
                      env={"TMPDIR": self.aside})
        return {"LD_PRELOAD": library, "LIE": kind, "LIE_FILE": file, "LIE_AT": str(offset)}

    def trace(self, variable, words):
        """Runs a job that must be good; what its threads traced: {(process, thread): [fields of a line]}."""
        directory = tempfile.mkdtemp(dir=self.aside)
        job = self.good(words, env={variable: directory})
        lines = {}
        for name in os.listdir(directory):
            with open(os.path.join(directory, name), encoding="ascii") as file:
                lines[tuple(int(part) for part in name.split("."))] = [line.split() for line in file]
        return job, lines

    def files(self, directory=None):
        """Sizes of all files below a directory; one that goes while it is looked at is none of them."""
        directory = directory or self.dir
        sizes = {}
        for place, _, names in os.walk(directory):
            for name in names:
                path = os.path.join(place, name)
                with contextlib.suppress(FileNotFoundError):
                    sizes[os.path.relpath(path, directory)] = os.path.getsize(path)
        return sizes
