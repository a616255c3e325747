"""gpfs-1.4: Tables 1, 2, 4, 5, 7, 8 and Figures 3 to 8, which show the same numbers (gpfsio)."""

from gupfs_report import documents
from gupfs_report.model import Axis, Cell, Experiment, Job
from gupfs_report.scale import KIB, MIB, size_text

THREADS = (1, 2, 4, 8, 16)
RECORD = 256 * KIB
REQUESTS = 2000


def job(nodes, threads, scale):
    """One cell of the tables, one run: write, then read what the node before wrote."""
    options = ("-n", str(nodes), "-t", str(threads), "-o", "write,read", "-c", str(scale.requests), "-b", "256K",
               "-i", "1", "-r", "-d", "{dir}", "--json", "{json}")
    return Job("gpfsio", nodes, options, room_bytes=nodes * threads * scale.requests * RECORD + MIB, room_files=4,
               limit_seconds=scale.limit_seconds)


def cells_of(table, metric):
    """Nodes and threads of a table of the document."""
    nodes_of_table = [int(nodes) for nodes in documents.load("gpfs-1.4")["tables"][table]["rows"]]

    def cells(scale):
        found = []
        for nodes in nodes_of_table:
            for threads in THREADS:
                place = ("", str(threads), nodes)
                if nodes > scale.processes or threads > scale.threads or nodes * threads > scale.streams:
                    found.append(Cell(*place, gap=f"not measured at scale {scale.name}"))
                else:
                    found.append(Cell(*place, job(nodes, threads, scale), metric))
        return found
    return cells


def scaled(most):
    def rows(scale):
        return [("requests of a thread", "2,000 of 256 KB", f"{scale.requests:,} of 256 KiB ({size_text(scale.requests * RECORD)})"),
                ("nodes", f"1 to {most}", f"1 to {min(most, scale.processes)}, of which {scale.streams} threads at most run at once"),
                ("threads of a node", "1 to 16", f"1 to {min(16, scale.threads)}")]
    return rows


NOTES = (
    "The document took the mean of six runs (Tables 1 to 5), and of four without the highest and the lowest (7 and 8).",
    "Where each node reads is not said: here each reads what the node before it wrote (gpfsio -r).",
    "How many servers a file system has cannot be chosen by a client: the tables for one server and for two compare with the "
    "same points of ours.")
# Table, figure, its metric, nodes at most, how the document takes its mean.
SHOWN = (("table-1", "figure-3", "read", 32, "mean", "GPFS 1.4, 1 server"),
         ("table-2", "figure-4", "write", 32, "mean", "GPFS 1.4, 1 server"),
         ("table-4", "figure-5", "read", 32, "mean", "GPFS 1.4, 2 servers"),
         ("table-5", "figure-6", "write", 32, "mean", "GPFS 1.4, 2 servers"),
         ("table-7", "figure-7", "read", 28, "trimmed", "GPFS 1.4, High Nodes"),
         ("table-8", "figure-8", "write", 24, "trimmed", "GPFS 1.4, High Nodes"))
NAMES = {str(threads): f"{threads} thread{'s' if threads > 1 else ''}" for threads in THREADS}

EXPERIMENTS = [
    Experiment(
        f"gpfs-1.4-{source}", "gpfs-1.4", source, Axis("GPFS nodes", log=True), Axis("MB/s"), "Threads of a node",
        cells_of(table, metric), scaled(most), lines=("x", "subject"), columns=("series",), facets=("subject",),
        curve=("series",), statistic=statistic, subject=subject, names=NAMES, notes=NOTES)
    for at in (0, 1) for table, figure, metric, most, statistic, subject in SHOWN for source in [(table, figure)[at]]]
