"""A GUPFS mount for tests: made in a temporary directory of its own, and taken down whatever happens.

The directory is locked by the process that made it. What a run that was killed left behind is therefore seen by the
next one, which says so and takes it down."""

import fcntl
import glob
import os
import shutil
import subprocess
import sys
import tempfile

PREFIX = "gupfs-benchmarks-mount."
# Room for what all tests together hold at a time; the files behind it are sparse.
SIZE = "4G"
PAGEPOOL = "256M"
# Starting and stopping take a second or two; a daemon that waits for longer is a failure.
TIMEOUT_SECONDS = 120
LOG_LINES_SHOWN = 40


class MountError(Exception):
    """It cannot be made, or not be taken down."""


def temporary():
    """Where the directories are: not TMPDIR, which may be anything, so that the next run looks there, too."""
    return "/tmp"


def mounts_below(path):
    """Mount points in a directory."""
    with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as file:
        points = [line.split()[1] for line in file]
    return [point for point in points if point == path or point.startswith(path + "/")]


def lock(path):
    """The lock of a directory, as a handle; None: somebody else has it, or the directory is gone."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(handle), os.stat(path)):
            return handle
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(handle)
    return None


class Mount:
    """`with Mount(program) as mount`: `mount.point` is a GUPFS file system meanwhile."""

    def __init__(self, program):
        self.program = program
        self.top = None
        self.handle = None

    @property
    def state(self):
        return os.path.join(self.top, "state")

    @property
    def point(self):
        return os.path.join(self.top, "mnt")

    def gupfs(self, *words):
        """Runs a command; raises MountError with what it said."""
        command = [self.program, *words]
        try:
            job = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
                                 timeout=TIMEOUT_SECONDS)
        except OSError as error:
            raise MountError(f"cannot run {self.program}: {error.strerror} (`make build` makes it)") from None
        except subprocess.TimeoutExpired:
            raise MountError(f"not done after {TIMEOUT_SECONDS} s: {' '.join(command)}\n{self.log()}") from None
        if job.returncode != 0:
            raise MountError(f"fails: {' '.join(command)}\n{job.stdout}{job.stderr}{self.log()}")

    def log(self):
        """The end of the daemon's log."""
        try:
            with open(os.path.join(self.state, "log"), encoding="utf-8", errors="replace") as file:
                lines = file.readlines()[-LOG_LINES_SHOWN:]
        except OSError:
            return ""
        return f"--- the daemon's log, its last {len(lines)} lines\n{''.join(lines)}"

    def __enter__(self):
        self.take_down_leftovers()
        while self.handle is None:
            # A run that begins at this moment may take it for a leftover, and remove it.
            self.top = tempfile.mkdtemp(prefix=PREFIX, dir=temporary())
            self.handle = lock(self.top)
        try:
            self.gupfs("up", "--mount", self.point, "--mkdir", "--state", self.state, "--size", SIZE,
                       "--pagepool", PAGEPOOL, "--backing", "file")
        except BaseException:
            self.take_down()
            raise
        return self

    def __exit__(self, *_):
        self.take_down()

    def take_down(self):
        """Unmounts and removes all; raises MountError if something stays."""
        if os.path.isdir(self.state):
            self.gupfs("down", "--destroy", "--state", self.state)
        left = mounts_below(self.top)
        if left:
            raise MountError(f"still mounted after `gupfs down`: {', '.join(left)}")
        shutil.rmtree(self.top)
        os.close(self.handle)
        self.handle = None

    def take_down_leftovers(self):
        """What earlier runs left that were killed; runs that are going on hold their locks."""
        for path in glob.glob(os.path.join(temporary(), PREFIX + "*")):
            handle = lock(path)
            if handle is None:
                continue
            print(f"left behind by a run that was killed: {path}; taking it down", file=sys.stderr)
            old = Mount(self.program)
            old.top, old.handle = path, handle
            try:
                old.take_down()
            except MountError as error:
                raise MountError(f"{path} is left behind by a run that was killed, and stays:\n{error}") from None
