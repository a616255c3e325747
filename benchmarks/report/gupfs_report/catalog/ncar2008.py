"""ncar-2008: Figures 2 to 5, which IOR measured (mptio), and the POPIO comparison (popio)."""

from gupfs_report.model import Axis, Cell, Experiment, Job
from gupfs_report.scale import MIB, option_size, size_text

NODES = (1, 2, 4, 8, 16, 32)
TASKS = (1, 2, 4, 8, 16, 32)
TASKS_OF_NODE = 32
RECORD = MIB
BEST, WORST = "best case", "worst case"
TESTS = {"read": "Seq_Read", "write": "Seq_Write"}
SKIP = ("-k", "1", "-k", "2", "-k", "4")


def best_job(nodes, scale):
    """One task of each I/O node, on a file of its own."""
    return mptio(nodes, ("-P", "-t", "1"), scale)


def worst_job(nodes, scale):
    """All tasks of each I/O node, on one file: a process is an I/O node, its threads are the tasks."""
    return mptio(nodes, ("-G", "-t", str(min(TASKS_OF_NODE, scale.threads))), scale)


def mptio(nodes, files, scale):
    rotate = ("-r",) if nodes > 1 else ()
    options = (*files, "-f", option_size(scale.client_bytes), "-b", option_size(RECORD), *SKIP, *rotate, "-d", "{dir}")
    return Job("mptio", nodes, options, room_bytes=nodes * scale.client_bytes + MIB, room_files=nodes * scale.threads + 4,
               limit_seconds=scale.limit_seconds)


def best_and_worst(scale):
    cells = []
    for panel, job in ((BEST, best_job), (WORST, worst_job)):
        for what, metric in TESTS.items():
            for nodes in NODES:
                if nodes <= scale.processes:
                    cells.append(Cell(panel, what, nodes, job(nodes, scale), metric))
                else:
                    cells.append(Cell(panel, what, nodes, gap=f"not measured at scale {scale.name}"))
    return cells


def contention(scale):
    """More and more tasks on one I/O node, each with a file of its own."""
    return [Cell("", what, tasks, mptio(1, ("-T", "-t", str(tasks)), scale), metric) if tasks <= 2 * scale.threads
            else Cell("", what, tasks, gap=f"not measured at scale {scale.name}")
            for what, metric in TESTS.items() for tasks in TASKS]


def ior_scaled(scale):
    return [("I/O nodes", "1 to 32", f"1 to {min(32, scale.processes)} processes"),
            ("tasks of an I/O node", "1 (best), 32 (worst)", f"1, {min(TASKS_OF_NODE, scale.threads)}: threads of a process"),
            ("data of an I/O node", "not said", size_text(scale.client_bytes)), ("record size", "not said", size_text(RECORD))]


def contention_scaled(scale):
    return [("tasks of the I/O node", "1 to 32", f"1 to {min(32, 2 * scale.threads)}: threads of one process"),
            ("data of the I/O node", "not said", size_text(scale.client_bytes)), ("record size", "not said", size_text(RECORD))]


METHODS = {"independent": "independent writes of tiles (the document's)", "collective": "collective MPI-IO",
           "own": "a file for each process"}


def popio_job(processes, scale):
    size = scale.columns * scale.rows * 8 * scale.arrays
    shift = ("-s",) if processes > 1 else ()
    options = ("-x", str(scale.columns), "-y", str(scale.rows), "-a", str(scale.arrays), "-t", "144x120",
               "-m", ",".join(METHODS), *shift, "-d", "{dir}", "--json", "{json}")
    return Job("popio", processes, options, room_bytes=size + 16 * MIB, room_files=processes + 8,
               limit_seconds=scale.limit_seconds)


def popio(scale):
    cells = []
    for method in METHODS:
        for what in ("write", "read"):
            for processes in TASKS:
                if processes <= scale.processes:
                    cells.append(Cell(method, what, processes, popio_job(processes, scale), f"{method} {what}"))
                else:
                    cells.append(Cell(method, what, processes, gap=f"not measured at scale {scale.name}"))
    return cells


def popio_scaled(scale):
    return [("array", "3600 x 2400 doubles", f"{scale.columns} x {scale.rows} doubles"), ("arrays", "several", str(scale.arrays)),
            ("tile", "144 x 120 (for 500 processes)", "144 x 120, dealt cyclically"),
            ("processes", "not said in the text", f"1 to {min(TASKS[-1], scale.processes)}")]


IOR_NOTES = (
    "IOR is mptio here: times from before the open to after the close, no fsync; a process stands for an I/O node, its threads "
    "for the tasks behind it.",
    "With more than one process each reads what the process before it wrote.",
    "The document's curves are of storage clusters of 2, 4 and 6 servers; a client cannot choose how many servers there are.")
NAMES = {BEST: "best case: own files, 1 task a node", WORST: "worst case: one file, all tasks"}

EXPERIMENTS = [
    *[Experiment(f"ncar-2008-{source}", "ncar-2008", source, Axis("I/O nodes", log=True), Axis("MB/s", log=True), "Operation",
                 best_and_worst, ior_scaled, facets=("panel", "series"), names=NAMES, notes=IOR_NOTES)
      for source in ("figure-2", "figure-3", "figure-4")],
    Experiment("ncar-2008-figure-5", "ncar-2008", "figure-5", Axis("tasks of one I/O node", log=True), Axis("MB/s", log=True),
               "Operation", contention, contention_scaled, notes=IOR_NOTES),
    Experiment("ncar-2008-popio", "ncar-2008", "popio", Axis("processes", log=True), Axis("MB/s", log=True), "Operation", popio,
               popio_scaled, facets=("panel", "series"), names=METHODS,
               notes=("With more than one process each reads what another wrote (popio -s). All that is read is verified.",
                      "The document measured one way, independent requests; the other two are what applications do instead.",
                      "ROMIO writes independent, scattered requests by reading and writing whole blocks under an fcntl lock. A "
                      "file system that keeps such locks within each node loses data: popio finds it, and the points are "
                      "gaps. There it is right with the hint romio_ds_write=disable.",
                      "Its Figures 6 to 8 show write and read for each cluster; the text has no number of them.")),
]
