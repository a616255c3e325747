"""Runs one job under mpiexec: the command, its end, and what it leaves when it has to be ended."""

import ctypes
import os
import shlex
import signal
import subprocess
import tarfile
import tempfile
import time
import random
import re
from dataclasses import dataclass

from gupfs_report import Failure

# How long a job that is told to end may take to remove its files.
END_SECONDS = 20
PR_SET_PDEATHSIG = 1
# What is kept of an output: the end of more than this is a fault of the program.
LOG_BYTES_MAX = 4 << 20


@dataclass(frozen=True)
class Done:
    """A run that has ended."""

    command: str
    code: int | None
    seconds: float
    stdout: str
    stderr: str
    json: str
    # Why it was ended before its own end.
    ended: str = ""


def default_mpiexec():
    """The command that starts MPI jobs, with what Open MPI wants to be told on one machine."""
    words = shlex.split(os.environ.get("MPIEXEC", "mpiexec"))
    if len(words) == 1 and is_open_mpi(words):
        words += ["--quiet", "--oversubscribe", "--bind-to", "none"]
        if os.geteuid() == 0:
            words.append("--allow-run-as-root")
    return words


def is_open_mpi(mpiexec):
    """Whether it is Open MPI's. A missing command is a Failure."""
    try:
        done = subprocess.run([mpiexec[0], "--version"], capture_output=True, text=True, timeout=20, check=False)
    except FileNotFoundError as error:
        raise Failure(f"{mpiexec[0]} is missing: install MPICH (Debian: mpich libmpich-dev), or set MPIEXEC") from error
    except subprocess.TimeoutExpired as error:
        raise Failure(f"{mpiexec[0]} --version does not answer") from error
    return "open" in done.stdout.lower() and "mpi" in done.stdout.lower()


def program_path(build, name):
    """A program of benchmarks/build, or a Failure that says how to make it."""
    path = os.path.abspath(os.path.join(build, name))
    if not os.access(path, os.X_OK):
        raise Failure(f"{path} is not built: run `make benchmarks`")
    return path


def command(mpiexec, program, job, work, json_path, tar_path, devices=()):
    """The words of a job. `work`: the directory in each of the target's mounts; ranks are placed on them in turn.
    `devices`: those of a target that has no directories."""
    options = []
    if devices:
        work = ["."]
    for option in job.device_options if devices else job.options:
        if option == "{devices}":
            options += [word for device in devices[:job.devices or None] for word in ("-R", device)]
            continue
        option = option.replace("{json}", json_path)
        option = re.sub(r"\{tar:[\d:]+\}", lambda _: tar_path, option)
        # With several mounts each process works in the directory it starts in.
        options.append(option.replace("{dir}", work[0] if len(work) == 1 else "."))
    if len(work) == 1:
        return [*mpiexec, "-n", str(job.ranks), program, *options]
    words = list(mpiexec)
    for rank in range(job.ranks):
        shell = f"cd {shlex.quote(work[rank % len(work)])} && exec \"$0\" \"$@\""
        words += ([":"] if rank else []) + ["-n", "1", "sh", "-c", shell, program, *options]
    return words


def archive(job, directory):
    """The archive that a job's options ask for, made once: path, or empty."""
    found = next((match for option in job.options for match in [re.search(r"\{tar:(\d+):(\d+):(\d+)\}", option)] if match), None)
    if not found:
        return ""
    files, directories, size = map(int, found.groups())
    path = os.path.join(directory, f"archive-{files}-{directories}-{size}.tar")
    if not os.path.exists(path):
        with tempfile.NamedTemporaryFile(dir=directory, delete=False) as part:
            write_archive(part, files, directories, size)
        os.replace(part.name, path)
    return path


def write_archive(to, files, directories, size):
    """So many files in so many directories; sizes drawn with a fixed seed, their sum exact."""
    draw = random.Random(2002)
    weights = [draw.expovariate(1) for _ in range(files)]
    ends, total, whole = [], 0.0, sum(weights)
    for weight in weights:
        total += weight
        ends.append(round(size * total / whole))
    with tarfile.open(fileobj=to, mode="w") as tar:
        for index in range(directories):
            info = tarfile.TarInfo(f"d{index}")
            info.type, info.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(info)
        for index in range(files):
            info = tarfile.TarInfo(f"d{index % directories}/f{index}")
            info.size = ends[index] - (ends[index - 1] if index else 0)
            tar.addfile(info, Zeros())


class Zeros:
    """A file of zeros without end."""

    def read(self, count):
        return bytes(count)


def end_with_parent():
    """In the child: it ends when this program is killed, and its processes with it."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def run(words, limit_seconds, json_path, stop):
    """Runs a command until its end, its limit, or until `stop()`. Everything it started ends with it."""
    start = time.monotonic()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True,
                                   preexec_fn=end_with_parent)
        ended = ""
        try:
            while process.poll() is None:
                if stop():
                    ended = "interrupted"
                elif time.monotonic() - start > limit_seconds:
                    ended = f"did not end within {limit_seconds} s"
                if ended:
                    break
                try:
                    process.wait(0.05)
                except subprocess.TimeoutExpired:
                    pass
        finally:
            end(process)
        seconds = time.monotonic() - start
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read(LOG_BYTES_MAX).decode("utf-8", "replace"))
    try:
        with open(json_path, encoding="utf-8", errors="replace") as file:
            written = file.read(LOG_BYTES_MAX)
    except FileNotFoundError:
        written = ""
    return Done(shlex.join(words), process.returncode, seconds, texts[0], texts[1], written, ended)


def end(process):
    """Ends a job: a request first, so that its processes remove their files, then by force."""
    for which in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            break
        os.killpg(process.pid, which)
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            continue
    process.wait()
