"""What an experiment is: cells of a table or points of a figure, and the jobs that measure them."""

import hashlib
import json
from dataclasses import dataclass, field
from typing import Callable


@dataclass(frozen=True)
class Job:
    """A command that is run, on each target and for each repeat.

    `options` follow the program's name. In them `{dir}` stands for the directory to work in, `{json}` for the
    file that the program writes its results to, `{tar:FILES:DIRECTORIES:BYTES}` for an archive made for the run.
    """

    program: str
    ranks: int
    options: tuple[str, ...]
    # The options on block devices, `{devices}` among them; None: it needs a directory.
    device_options: tuple[str, ...] | None = None
    # So many devices of the target; 0: all. A directory has no two.
    devices: int = 0
    # Room and files that it takes at most, of all processes together.
    room_bytes: int = 0
    room_files: int = 0
    # Seconds after which it is ended and has failed.
    limit_seconds: int = 600

    @property
    def key(self) -> str:
        """Names what is measured; equal jobs of several experiments are run once."""
        words = json.dumps([self.program, self.ranks, self.options, self.device_options, self.devices])
        return f"{self.program}-{hashlib.sha256(words.encode()).hexdigest()[:16]}"

    def gap(self, is_device: bool, places: int) -> str:
        """Why it cannot be run on a target of so many devices, or on a directory; empty: it can."""
        if not is_device and self.devices > 1:
            return f"{self.devices} devices: a file system does not let one choose them"
        if is_device and self.device_options is None:
            return "it needs a file system"
        if is_device and places < self.devices:
            return f"it needs {self.devices} devices"
        return ""

    def __str__(self) -> str:
        return f"{self.program} {' '.join(self.options)} (processes: {self.ranks})"


@dataclass(frozen=True)
class Cell:
    """One number of a table or point of a curve: which value of which job, or why there is none."""

    panel: str
    series: str
    x: float
    job: Job | None = None
    # Which of the job's values.
    metric: str = ""
    # Why it is left out, where there is no job.
    gap: str = ""


@dataclass(frozen=True)
class Axis:
    """What an axis shows, with its unit."""

    label: str
    log: bool = False


@dataclass(frozen=True)
class Experiment:
    """A table or figure of a document."""

    id: str
    # Of the document's data: `documents.load(document)`, and the names of a table or figure in it.
    document: str
    source: str
    x: Axis
    y: Axis
    # What tells curves apart, for the legend: "Threads", "Test".
    series: str
    # The cells at a scale, and what was scaled: (what, in the document, here).
    cells: Callable[["Scale"], list[Cell]]  # noqa: F821
    scaled: Callable[["Scale"], list[tuple[str, str, str]]]  # noqa: F821
    # Of the tables: what lines and columns are, of panel, series, x, subject.
    lines: tuple[str, ...] = ("x",)
    columns: tuple[str, ...] = ("series", "subject")
    # Of the plots: one for each value of `facets`; a curve for each of `curve` (the first: colour, then: dashes).
    facets: tuple[str, ...] = ("series",)
    curve: tuple[str, ...] = ("subject",)
    # How repeats become a value: "median", "mean", or "trimmed" (mean without the highest and lowest).
    statistic: str = "median"
    # What the document used is named so on the page, where its data does not say.
    subject: str = ""
    # How series and panels are written: key -> text.
    names: dict[str, str] = field(default_factory=dict)
    # What differs from the document's way, for the page.
    notes: tuple[str, ...] = ()
