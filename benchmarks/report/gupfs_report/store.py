"""Stored runs: one JSON file for each run of a job on a target, and its raw log beside it.

    DIR/session.json                       what was asked for last: experiments with their scale, targets
    DIR/runs/TARGET/IDENTITY/identity.json the machine and file system that the runs below belong to
    DIR/runs/TARGET/IDENTITY/JOB.N.json    run N of a job: values, or why there are none
    DIR/runs/TARGET/IDENTITY/JOB.N.log     what it printed, and its command

Invariants: a file is there as a whole or not at all; a record is written after its log; runs of another machine
or file system have another IDENTITY; a record names the build of its program.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import tempfile

from gupfs_report import Failure

FORMAT = 1


def write_whole(path, text):
    """Writes a file so that it is never seen in part."""
    directory = os.path.dirname(path)
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=directory, prefix=".part.", delete=False) as part:
        part.write(text)
        part.flush()
        os.fsync(part.fileno())
    os.chmod(part.name, 0o644)
    os.replace(part.name, path)


def read_json(path):
    """A JSON file, or None where there is none or it is no JSON (it was not written by this program)."""
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (FileNotFoundError, ValueError):
        return None


def digest(value):
    """Of anything that JSON can say."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def file_digest(path):
    """Of a program: its build."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:12]


class Store:
    """The results in a directory."""

    def __init__(self, root):
        self.root = os.path.abspath(root)

    @contextlib.contextmanager
    def locked(self):
        """While one program writes, no other does."""
        try:
            os.makedirs(os.path.join(self.root, "runs"), exist_ok=True)
            lock = open(os.path.join(self.root, "lock"), "w", encoding="ascii")
        except OSError as error:
            raise Failure(f"{self.root}: cannot be written to: {error.strerror}") from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise Failure(f"{self.root}: another gupfs-report writes results there; wait for its end, or give "
                              "another --results") from error
            yield

    def session(self):
        """What was asked for last, or a Failure."""
        session = read_json(os.path.join(self.root, "session.json"))
        if session is None:
            raise Failure(f"{self.root}: holds no results; measure with `gupfs-report run`")
        if session.get("format") != FORMAT:
            raise Failure(f"{self.root}: results of format {session.get('format')}; this program knows {FORMAT}")
        return session

    def save_session(self, scales, targets, machine):
        """Adds experiments (name -> scale) and targets (name -> identity, digest) to what is there."""
        old = read_json(os.path.join(self.root, "session.json")) or {}
        if old.get("format", FORMAT) != FORMAT:
            raise Failure(f"{self.root}: results of format {old['format']}; this program knows {FORMAT}")
        session = {"format": FORMAT, "experiments": {**old.get("experiments", {}), **scales},
                   "targets": {**old.get("targets", {}), **{name: key for name, (_, key) in targets.items()}}}
        for name, (identity, key) in targets.items():
            place = os.path.join(self.root, "runs", name, key)
            os.makedirs(place, exist_ok=True)
            write_whole(os.path.join(place, "identity.json"), json.dumps({"machine": machine, "target": identity}, indent=1))
        write_whole(os.path.join(self.root, "session.json"), json.dumps(session, indent=1))

    def place(self, target, key):
        return os.path.join(self.root, "runs", target, key)

    def identity(self, target, key):
        """The machine and file system of these runs."""
        return read_json(os.path.join(self.place(target, key), "identity.json"))

    def others(self, target, key):
        """Other machines or file systems that have runs under this target's name."""
        try:
            names = sorted(os.listdir(os.path.join(self.root, "runs", target)))
        except FileNotFoundError:
            return []
        return [name for name in names if name != key]

    def record(self, target, key, job, number):
        """Run `number` of a job, or None."""
        record = read_json(os.path.join(self.place(target, key), f"{job.key}.{number}.json"))
        return record if record and record.get("format") == FORMAT else None

    def log(self, record, target, key):
        """The raw log of a record."""
        try:
            with open(os.path.join(self.place(target, key), record["log"]), encoding="utf-8") as file:
                return file.read()
        except OSError as error:
            return f"(the log is missing: {error.strerror})"

    def save(self, target, key, job, number, record, log):
        """Stores a run: first its log, then its record."""
        name = f"{job.key}.{number}"
        place = self.place(target, key)
        write_whole(os.path.join(place, name + ".log"), log)
        write_whole(os.path.join(place, name + ".json"),
                    json.dumps({"format": FORMAT, **record, "log": name + ".log"}, indent=1))
