"""gupfs-2002: Table 1 (metabench), Figures 10 and 11 (mptio), Table B-3 (pioraw)."""

from gupfs_report.model import Axis, Cell, Experiment, Job
from gupfs_report.scale import KIB, MIB, option_size, size_text

PROCESSES = (1, 2, 3, 4, 6, 8)
TESTS = ("Create-A", "Create-B", "Create-C", "Stat-A", "Stat-B", "Utime-A", "Utime-B", "Append-A", "Append-B", "Untar")
ARCHIVE_FILES, ARCHIVE_DIRECTORIES, ARCHIVE_BYTES = 9188, 459, int(75.8 * MIB)
APPEND_BYTES = 16 * KIB


def archive(scale):
    """Files, directories and bytes of the archive: glibc-2.3's, or as many less of each."""
    part = scale.archive_files / ARCHIVE_FILES
    return scale.archive_files, max(1, round(ARCHIVE_DIRECTORIES * part)), round(ARCHIVE_BYTES * part)


def metadata_job(processes, scale):
    workers = max(1, processes - 1)
    files, directories, size = archive(scale)
    options = ("-CSUATk", "-c", str(scale.files), "-f", str(max(1, scale.files // 20)), "-w", "{dir}",
               "--tar", "{tar:%d:%d:%d}" % (files, directories, size))
    return Job("metabench", processes, options,
               room_bytes=max(scale.files * APPEND_BYTES, size * workers) + (16 << 20),
               room_files=max(scale.files, (files + directories) * workers) + 16, limit_seconds=scale.limit_seconds)


def table_1(scale):
    cells = []
    for processes in PROCESSES:
        if processes <= scale.processes:
            job = metadata_job(processes, scale)
            cells += [Cell("", test, processes, job, test) for test in TESTS]
        else:
            cells += [Cell("", test, processes, gap=f"not measured at scale {scale.name}") for test in TESTS]
    return cells


def table_1_scaled(scale):
    files, directories, size = archive(scale)
    return [("files of each test", "20,000", f"{scale.files:,}"),
            ("batches of Create-A", "1,000 files", f"{max(1, scale.files // 20):,} files"),
            ("archive", "9,188 files, 459 directories, 75.8 MB",
             f"{files:,} files, {directories:,} directories, {size / MIB:.1f} MB"),
            ("processes N", "1 to 8", f"1 to {scale.axis(PROCESSES, scale.processes)[-1]}")]


RAW_CLIENTS = (1, 2, 4, 8)
RAW_THREADS = (1, 2, 4, 8)
RAW_RECORD = 256 * KIB
# Series of Figures 10 and 11: which file, on how many devices, its size.
FAMILIES = (("small", 1), ("large", 1), ("small", 2), ("large", 2))


def raw_job(family, devices, clients, threads, scale):
    """-F: the size of the whole file is kept. The large one goes past the page cache; devices always do."""
    size = scale.small_bytes if family == "small" else scale.large_bytes
    common = ("-F", option_size(size), "-b", option_size(RAW_RECORD), "-t", str(threads), "-k", "1", "-k", "2", "-k", "4")
    direct = ("-I",) if family == "large" else ()
    return Job("mptio", clients, ("-G", *common, *direct, "-d", "{dir}"), ("{devices}", *common, "-I"), devices,
               room_bytes=size + MIB, room_files=4, limit_seconds=scale.limit_seconds)


def raw_cells(metric):
    """Cells of Figure 10 or 11. A curve: a family and a number of threads; x: all threads."""
    def cells(scale):
        found = []
        for family, devices in FAMILIES:
            name = f"{family}, {devices} device" + ("s" if devices > 1 else "")
            for threads in RAW_THREADS:
                for clients in RAW_CLIENTS:
                    place = (f"{threads} thread{'s' if threads > 1 else ''}/client", name, clients * threads)
                    if threads < devices:
                        found.append(Cell(*place, gap="mptio gives each device a thread of each client: two at least"))
                    elif clients > scale.processes or threads > scale.threads:
                        found.append(Cell(*place, gap=f"not measured at scale {scale.name}"))
                    else:
                        found.append(Cell(*place, raw_job(family, devices, clients, threads, scale), metric))
        return found
    return cells


def raw_scaled(scale):
    return [("small file", "fits the 256 MB cache of a controller", size_text(scale.small_bytes)),
            ("large file", "does not fit it", f"{size_text(scale.large_bytes)}, read and written with O_DIRECT"),
            ("clients", "1 to 8", f"1 to {scale.axis(RAW_CLIENTS, scale.processes)[-1]} processes"),
            ("threads of a client", "not said", f"1 to {scale.axis(RAW_THREADS, scale.threads)[-1]}")]


RAW_NOTES = (
    "The document measured raw devices behind two controllers. On block devices (--on NAME=/dev/a,/dev/b --overwrite NAME) this "
    "does the same with O_DIRECT; in a directory the same pattern runs on one file: small files through the page cache (the "
    "document: through the controller's), large files with O_DIRECT.",
    "A file system that refuses O_DIRECT is measured through the cache; mptio's log says so.",
    "The figure's axis says threads of all clients; the text does not say which numbers of threads a client had.")

PES = (1, 2, 3, 4, 5)
BLOCKS = (1, 4, 16, 64, 256, 1024, 4096, 16384)


def timed_job(processes, scale):
    """All block counts, writing and reading, of so many processes."""
    options = ("-p", str(processes), "-t", f"{scale.seconds:g}", "-f", option_size(scale.timed_bytes), "--json", "{json}")
    return Job("pioraw", processes, (*options, "-d", "{dir}"), (*options, "-I", "{devices}"),
               room_bytes=processes * scale.timed_bytes + MIB, room_files=processes + 4,
               limit_seconds=max(scale.limit_seconds, round(4 * 2 * len(BLOCKS) * scale.seconds)))


def table_b_3(scale):
    cells = []
    for processes in PES:
        for operation in ("WRITE", "READ"):
            for blocks in BLOCKS:
                place = (f"{processes} {operation}", "", blocks)
                if processes <= scale.processes:
                    cells.append(Cell(*place, timed_job(processes, scale), f"{operation.lower()} {blocks}"))
                else:
                    cells.append(Cell(*place, gap=f"not measured at scale {scale.name}"))
    return cells


def table_b_3_scaled(scale):
    return [("time of each test", "120 s", f"{scale.seconds:g} s"),
            ("file of a process", "256 MB", size_text(scale.timed_bytes)),
            ("processes (PEs)", "1 to 5", f"1 to {scale.axis(PES, scale.processes)[-1]}")]


EXPERIMENTS = [
    Experiment(
        "gupfs-2002-table-1", "gupfs-2002", "table-1", Axis("N (processes)"), Axis("files/s", log=True), "Test",
        table_1, table_1_scaled, lines=("series", "subject"), columns=("x",), facets=("series",),
        subject="GFS 5.1, 2002",
        notes=("N counts process 0, which prepares and does not measure where N > 1: N - 1 processes work.",)),
    Experiment(
        "gupfs-2002-figure-10", "gupfs-2002", "figure-10", Axis("threads of all clients", log=True),
        Axis("MB/s", log=True), "File", raw_cells("Seq_Read"), raw_scaled, lines=("panel", "x"),
        facets=("series",), curve=("subject", "panel"), subject="raw devices 2002", notes=RAW_NOTES),
    Experiment(
        "gupfs-2002-figure-11", "gupfs-2002", "figure-11", Axis("threads of all clients", log=True),
        Axis("MB/s", log=True), "File", raw_cells("Seq_Write"), raw_scaled, lines=("panel", "x"),
        facets=("series",), curve=("subject", "panel"), subject="raw devices 2002", notes=RAW_NOTES),
    Experiment(
        "gupfs-2002-table-b-3", "gupfs-2002", "table-b-3", Axis("#blks of 1024 bytes", log=True), Axis("MB/s", log=True), "",
        table_b_3, table_b_3_scaled, lines=("x",), columns=("subject",), facets=("panel",),
        names={f"{processes} {operation}": f"{processes} PE{'s' if processes > 1 else ''}, {operation.lower()}"
               for processes in PES for operation in ("WRITE", "READ")},
        notes=("The document's columns are a raw device, a pool of two, and GFS 4.2 with two lock managers and two sizes of "
               "memory; ours are the targets.",
               "Its '[0] Filesize: 16777216 bytes' is one operation of 16384 blocks; its text says files of 256 MB.")),
]
