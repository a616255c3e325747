"""sdsc-2004: Graphs 1 to 6, which IOR measured; here gpfsio with the same pattern."""

from gupfs_report.model import Axis, Cell, Experiment, Job
from gupfs_report.scale import GIB, KIB, MIB, option_size, size_text

BLOCKS_KIB = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
PARTS_MIB = (4, 16, 64, 256, 1024, 4096, 8192)
NODES = tuple(range(2, 21, 2))
OPTIMAL = MIB
CLIENTS = 20


def job(clients, part, block, scale):
    """Each client writes its part of one file, with an fsync at the end, then reads that of the client before it."""
    options = ("-n", str(clients), "-t", "1", "-o", "write,read", "-c", str(part // block), "-b", option_size(block), "-i", "1",
               "-e", "-r", "-d", "{dir}", "--json", "{json}")
    return Job("gpfsio", clients, options, room_bytes=clients * part + MIB, room_files=4, limit_seconds=scale.limit_seconds)


def by_block(scale):
    clients = min(CLIENTS, scale.processes)
    return [Cell("", what, block, job(clients, scale.client_bytes, block * KIB, scale), what)
            for what in ("read", "write") for block in BLOCKS_KIB]


def by_part(scale):
    clients = min(CLIENTS, scale.processes)
    return [Cell("", what, part, job(clients, part * MIB, OPTIMAL, scale), what) if part * MIB <= scale.client_bytes_most
            else Cell("", what, part, gap=f"not measured at scale {scale.name}")
            for what in ("read", "write") for part in PARTS_MIB]


def by_nodes(scale):
    return [Cell("", what, nodes, job(nodes, scale.client_bytes, OPTIMAL, scale), what) if nodes <= scale.processes
            else Cell("", what, nodes, gap=f"not measured at scale {scale.name}")
            for what in ("read", "write") for nodes in NODES]


def scaled(what):
    def rows(scale):
        clients = str(min(CLIENTS, scale.processes))
        found = [("clients", "20 (GPFS), 12 (PVFS), 17 (Lustre)", f"2 to {clients}" if what == "nodes" else clients)]
        if what == "part":
            found.append(("data of a client", "4 MB to 8 GB", f"4 MiB to {size_text(min(scale.client_bytes_most, 8 * GIB))}"))
        else:
            found.append(("data of a client", "1 GB", size_text(scale.client_bytes)))
        if what != "block":
            found.append(("block size", "the one that Graph 1 or 3 found best", size_text(OPTIMAL)))
        return found
    return rows


NOTES = (
    "IOR (-e -g -u) is gpfsio here: barriers between the phases, an fsync within the time of writing. IOR's time contains the "
    "open and the close, gpfsio's does not.",
    "The text says 16 KB to 4 MB where its command lines say until 8M, and 20 clients where 17 or 18 ran.",
    "Each client reads what the client before it wrote; the document does not say whose data a client reads.",
    "Which nodes are servers cannot be chosen by a client: comparison 1 (Graphs 1, 2, 5) and 2 (3, 4, 6) compare with the same "
    "points of ours.")
KINDS = {"block": (Axis("block size (KB)", log=True), by_block), "part": (Axis("data of a client (MB)", log=True), by_part),
         "nodes": (Axis("nodes"), by_nodes)}

EXPERIMENTS = [
    Experiment(f"sdsc-2004-{source}", "sdsc-2004", source, KINDS[kind][0], Axis("MB/s", log=True), "Operation", KINDS[kind][1],
               scaled(kind), notes=NOTES)
    for source, kind in (("graph-1", "block"), ("graph-2", "part"), ("graph-3", "block"), ("graph-4", "part"),
                         ("graph-5", "nodes"), ("graph-6", "nodes"))]
