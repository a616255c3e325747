"""How large a run is: the documents' quantities at the scale of the machine at hand."""

from dataclasses import dataclass

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30


@dataclass(frozen=True)
class Scale:
    """Quantities that experiments take theirs from. Smaller is faster, larger is nearer to the document."""

    name: str
    # Runs of each point.
    repeats: int
    # The most processes, threads of a process, and threads of all processes, of a point.
    processes: int
    threads: int
    streams: int
    # Files of metabench (20,000), of its archive (9,188).
    files: int
    archive_files: int
    # Requests of 256 KiB of a thread of gpfsio (2,000).
    requests: int
    # Bytes of a small and a large file, and of a client's part of a shared file (1 GiB).
    small_bytes: int
    large_bytes: int
    client_bytes: int
    # The largest part of a client where that is varied (8 GiB).
    client_bytes_most: int
    # Seconds of a timed test (120), and bytes of its files (256 MB).
    seconds: float
    timed_bytes: int
    # Rows and columns of popio's arrays (3600 x 2400), and how many of them.
    columns: int
    rows: int
    arrays: int
    # Of a run; longer is a failure.
    limit_seconds: int

    def axis(self, values, most):
        """The values of a document's axis that this scale measures."""
        return [value for value in values if value <= most]


QUICK = Scale("quick", repeats=3, processes=4, threads=4, streams=16, files=600, archive_files=300, requests=64,
              small_bytes=8 * MIB, large_bytes=96 * MIB, client_bytes=32 * MIB, client_bytes_most=64 * MIB,
              seconds=0.2, timed_bytes=32 * MIB, columns=900, rows=600, arrays=2, limit_seconds=120)
NORMAL = Scale("normal", repeats=4, processes=8, threads=8, streams=64, files=5000, archive_files=2000,
               requests=400, small_bytes=64 * MIB, large_bytes=1 * GIB, client_bytes=256 * MIB,
               client_bytes_most=1 * GIB, seconds=5, timed_bytes=256 * MIB, columns=3600, rows=2400, arrays=4,
               limit_seconds=1200)
FULL = Scale("full", repeats=6, processes=32, threads=16, streams=512, files=20000, archive_files=9188,
             requests=2000, small_bytes=128 * MIB, large_bytes=4 * GIB, client_bytes=1 * GIB,
             client_bytes_most=8 * GIB, seconds=120, timed_bytes=256 * MIB, columns=3600, rows=2400, arrays=8,
             limit_seconds=7200)
SCALES = {scale.name: scale for scale in (QUICK, NORMAL, FULL)}


def size_text(size: float) -> str:
    """Bytes as people read them, in powers of 1024."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if size == int(size) else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def option_size(size: int) -> str:
    """Bytes as the programs' options take them."""
    for unit, name in ((GIB, "G"), (MIB, "M"), (KIB, "K")):
        if size % unit == 0:
            return f"{size // unit}{name}"
    return str(size)
