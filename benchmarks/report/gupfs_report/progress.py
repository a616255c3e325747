"""How far a run is: a bar with the time to go on a terminal, else a line for each step."""

import sys
import time


def duration(seconds):
    """As people say it."""
    seconds = int(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60:02} min"


class Estimate:
    """Seconds to go: a job takes what its runs took, one that never ran what the others took."""

    def __init__(self, todo):
        self.todo = list(todo)
        self.known = {}

    def done(self, job, seconds):
        """A run of this job, the next of the list, took so long."""
        self.known[job.key] = seconds
        self.todo.pop(0)

    def seconds(self):
        """None before anything is known."""
        if not self.known:
            return None
        mean = sum(self.known.values()) / len(self.known)
        return sum(self.known.get(job.key, mean) for job in self.todo)


class Lines:
    """For logs: one line a run."""

    def __init__(self, total, out):
        self.total, self.out, self.count = total, out, 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def begin(self, what):
        self.what = what

    def step(self, result, left):
        self.count += 1
        togo = f", {duration(left)} to go" if left and self.count < self.total else ""
        self.out.write(f"[{self.count}/{self.total}] {self.what}: {result}{togo}\n")
        self.out.flush()


class Bar:
    """For terminals. Failures stay on the screen."""

    def __init__(self, total):
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        self.bar = Progress(TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(),
                            TextColumn("{task.fields[togo]}"))
        self.task = self.bar.add_task("", total=total, togo="")
        self.start = time.monotonic()

    def __enter__(self):
        self.bar.__enter__()
        return self

    def __exit__(self, *what):
        return self.bar.__exit__(*what)

    def begin(self, what):
        self.what = what
        self.bar.update(self.task, description=what[:60].ljust(60))

    def step(self, result, left):
        if result.startswith("failed"):
            self.bar.console.print(f"{self.what}: {result}", markup=False, highlight=False)
        self.bar.update(self.task, advance=1, togo=f"{duration(left)} to go" if left is not None else "")


def make(total, out=sys.stderr):
    """A bar where somebody looks, lines elsewhere, and where rich is not installed."""
    if out.isatty():
        try:
            return Bar(total)
        except ImportError:
            pass
    return Lines(total, out)
