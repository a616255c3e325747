"""The engine: runs what is not stored yet, on each target in turn, and stores it.

Runs of one pass go over all points before any point is repeated, and over the targets within a point, so that
what slows the machine down for a while slows all alike, and a run that is cut short has seen every point.
"""

import contextlib
import datetime
import json
import os
import shutil
import signal
import sys
import time
from dataclasses import asdict, dataclass

from gupfs_report import Failure, launch, machine, progress, readers, targets
from gupfs_report.scale import size_text
from gupfs_report.store import digest, file_digest

MARKER = ".gupfs-report"
# What a file system needs for itself, beyond what a job writes.
SPARE_BYTES = 32 << 20


@dataclass(frozen=True)
class Step:
    """One run: which job on which target, and which repeat of it."""

    job: object
    target: targets.Target
    number: int


@dataclass(frozen=True)
class Outcome:
    """What a run of the engine did."""

    done: int
    failed: int
    kept: int
    left: int
    interrupted: bool


def jobs_of(experiments, scale):
    """All jobs of experiments, each once, in their order."""
    found = {}
    for experiment in experiments:
        for cell in experiment.cells(scale):
            if cell.job:
                found.setdefault(cell.job.key, cell.job)
    return list(found.values())


class Engine:
    """Everything that stays the same during a run."""

    def __init__(self, store, build, mpiexec, target_list):
        self.store, self.build, self.mpiexec, self.targets = store, build, mpiexec, target_list
        self.machine = machine.facts(mpiexec)
        self.identities = {}
        for target in target_list:
            identity = targets.identity(target)
            self.identities[target.name] = (identity, digest({"machine": self.machine, "target": identity}))
        self.programs = {}
        self.is_stopping = False

    def check(self, jobs):
        """That everything a run needs is there, before anything is measured."""
        names = {job.program for job in jobs}
        if "mptio" in names:
            names.add("mptsum")
        for name in sorted(names):
            self.programs[name] = file_digest(launch.program_path(self.build, name))
        for target in self.targets:
            targets.check(target)
            free, _ = targets.room(target)
            possible = [job for job in jobs if not job.gap(target.is_device, len(target.places))]
            if not possible:
                why = jobs[0].gap(target.is_device, len(target.places))
                if len(self.targets) == 1:
                    raise Failure(f"{target.name}: none of this can be measured there: {why}")
                sys.stderr.write(f"{target.name}: left out: {why}\n")
                continue
            least = min(job.room_bytes for job in possible) + SPARE_BYTES
            if free < least:
                raise Failure(f"{target.name}: {size_text(free)} are free in {target.places[0]}, and the smallest "
                              f"point needs {size_text(least)}; make room, or take a smaller --scale")

    def key(self, target):
        return self.identities[target.name][1]

    def is_stored(self, step):
        """Whether this run ended well, with the present build of its program."""
        record = self.store.record(step.target.name, self.key(step.target), step.job, step.number)
        return bool(record) and not record["failure"] and record["program"]["sha256"] == self.programs[step.job.program]

    def run(self, experiments, scale, repeats=None, minutes=None):
        """Measures what is missing. The results directory is locked by the caller."""
        jobs = jobs_of(experiments, scale)
        if not jobs:
            raise Failure("nothing can be measured: see the reasons with `gupfs-report list --gaps`")
        self.check(jobs)
        self.store.save_session({experiment.id: {"scale": scale.name, "repeats": repeats or scale.repeats}
                                 for experiment in experiments}, self.identities, self.machine)
        steps = [Step(job, target, number) for number in range(1, (repeats or scale.repeats) + 1) for job in jobs
                 for target in self.targets if not job.gap(target.is_device, len(target.places))]
        todo = [step for step in steps if not self.is_stored(step)]
        end = time.monotonic() + minutes * 60 if minutes else None
        return self.run_steps(todo, len(steps) - len(todo), end)

    def run_steps(self, todo, kept, end):
        """Runs these until they are done, the time is over, or somebody interrupts."""
        done = failed = 0
        estimate = progress.Estimate(step.job for step in todo)
        handlers = {which: signal.signal(which, self.stop) for which in (signal.SIGINT, signal.SIGTERM)}
        try:
            with progress.make(len(todo)) as shown:
                for step in todo:
                    # At least one: otherwise a short time, given again and again, would never end.
                    if self.is_stopping or (done + failed and end and time.monotonic() > end):
                        break
                    shown.begin(f"{step.target.name}: {step.job.program} {' '.join(step.job.options[:3])} "
                                f"x{step.job.ranks}, run {step.number}")
                    start = time.monotonic()
                    failure = self.run_step(step)
                    if failure is None:
                        break
                    done, failed = done + (not failure), failed + bool(failure)
                    estimate.done(step.job, time.monotonic() - start)
                    shown.step(f"failed: {failure}" if failure else f"{time.monotonic() - start:.1f} s", estimate.seconds())
        finally:
            for which, handler in handlers.items():
                signal.signal(which, handler)
        return Outcome(done, failed, kept, len(todo) - done - failed, self.is_stopping)

    def stop(self, _signal, _frame):
        self.is_stopping = True

    def run_step(self, step):
        """One run: an empty text if it ended well, why it failed, or None: it was interrupted and is not stored."""
        job, target = step.job, step.target
        record = {"job": asdict(job), "target": target.name, "number": step.number, "values": {}, "failure": "",
                  "program": {"name": job.program, "sha256": self.programs[job.program]},
                  "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
                  "load": machine.load_average(), "command": "", "seconds": 0.0, "code": None}
        free, files = targets.room(target)
        log = ""
        if free < job.room_bytes + SPARE_BYTES:
            record["failure"] = f"it needs {size_text(job.room_bytes + SPARE_BYTES)}, {size_text(free)} are free"
        elif files is not None and files < job.room_files:
            record["failure"] = f"it needs {job.room_files} files, {files} can be made"
        else:
            with contextlib.nullcontext([]) if target.is_device else Work(target) as work:
                done = self.launch(job, target, work)
            if done.ended == "interrupted":
                return None
            record.update(command=done.command, seconds=done.seconds, code=done.code)
            self.judge(job, done, record)
            log = log_text(done)
        self.store.save(target.name, self.key(target), job, step.number, record, log)
        return record["failure"]

    def launch(self, job, target, work):
        aside = os.path.join(self.store.root, "aside")
        os.makedirs(aside, exist_ok=True)
        json_path = os.path.join(aside, "result.json")
        if os.path.exists(json_path):
            os.remove(json_path)
        words = launch.command(self.mpiexec, launch.program_path(self.build, job.program), job, work, json_path,
                               launch.archive(job, aside), target.places if target.is_device else ())
        return launch.run(words, job.limit_seconds, json_path, lambda: self.is_stopping)

    def judge(self, job, done, record):
        """Takes the values of a run that ended well, or says why there are none."""
        if done.ended:
            record["failure"] = done.ended
        elif done.code != 0:
            said = next((line for line in done.stderr.splitlines() if line.strip()), "it says nothing")
            record["failure"] = f"ended with status {done.code}: {said[:300]}"
        else:
            try:
                record["program"]["version"] = readers.version(done)
                record["values"] = readers.read(job, done, self.build)
            except readers.BadReport as error:
                record["failure"] = f"its report cannot be read: {error}"


def log_text(done):
    """The raw log of a run."""
    parts = [f"$ {done.command}\n", done.stdout]
    if done.stderr.strip():
        parts.append(f"\n--- standard error\n{done.stderr}")
    if done.json:
        parts.append(f"\n--- JSON\n{done.json}")
    parts.append(f"\n--- status {done.code}{', ' + done.ended if done.ended else ''}, {done.seconds:.3f} s\n")
    return "".join(parts)


class Work:
    """The directory of a run in each of a target's places; it is removed at its end."""

    def __init__(self, target):
        self.target = target
        self.paths = [os.path.join(place, targets.WORK) for place in target.places]

    def __enter__(self):
        first = self.paths[0]
        try:
            if os.path.lexists(first):
                self.remove_leftover(first)
            os.mkdir(first)
            with open(os.path.join(first, MARKER), "w", encoding="ascii") as file:
                json.dump({"pid": os.getpid()}, file)
        except OSError as error:
            raise Failure(f"{self.target.name}: {first}: {error.strerror}") from error
        for path in self.paths:
            if not os.path.isdir(path):
                raise Failure(f"{self.target.name}: {first} was made, and {path} is not there: they must be mounts of "
                              "one file system")
        return self.paths

    def remove_leftover(self, path):
        """What a killed run left goes; what somebody else made stays."""
        try:
            with open(os.path.join(path, MARKER), encoding="ascii") as file:
                pid = int(json.load(file)["pid"])
        except (OSError, ValueError, KeyError, TypeError):
            raise Failure(f"{self.target.name}: {path} is there and was not made by gupfs-report: move it away") from None
        if pid != os.getpid() and is_running(pid):
            raise Failure(f"{self.target.name}: process {pid} measures in {path}; wait for its end")
        remove_tree(path)

    def __exit__(self, *_):
        remove_tree(self.paths[0])


def is_running(pid):
    """Whether this process is a gupfs-report, for a number may belong to another by now."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            command = file.read()
    except OSError:
        return False
    return b"gupfs_report" in command or b"gupfs-report" in command


def remove_tree(path):
    """Removes a directory while processes that were told to end may still remove files in it."""
    for _ in range(100):
        try:
            shutil.rmtree(path)
            return
        except FileNotFoundError:
            if not os.path.lexists(path):
                return
        except OSError:
            pass
        time.sleep(0.05)
    shutil.rmtree(path)
