"""`make report`: a lab of two mounts, an xfs and raw devices on the same backing, measured and taken down again.

Everything that is mounted lies below DIR/lab-and-xfs and is removed at the end, also after a failure; what a
killed run left is removed by the next.
"""

import argparse
import hashlib
import os
import shlex
import shutil
import signal
import subprocess
import sys

from gupfs_report import Failure, cli
from gupfs_report.scale import MIB, SCALES

# Percent of the free bytes that are written once before anything is measured: the first touch of memory or of a
# sparse file is no property of a file system.
FILL_PERCENT = 80


def call(*words):
    """Runs a command; a Failure has what it said."""
    # In a session of its own: Ctrl-C is for this program, which then takes down what there is.
    done = subprocess.run(words, capture_output=True, text=True, check=False, start_new_session=True)
    if done.returncode != 0:
        raise Failure(f"{shlex.join(words)}: {(done.stderr or done.stdout).strip()}")
    return done.stdout.strip()


class Rig:
    """The lab and the xfs."""

    def __init__(self, root, gupfs, size, backing):
        self.root, self.gupfs, self.size, self.backing = root, gupfs, size, backing
        self.lab = os.path.join(root, "lab")
        self.memory = os.path.join(root, "memory")
        self.image = os.path.join(self.memory, "xfs.image")
        self.xfs = os.path.join(root, "xfs")
        self.raw_images = [os.path.join(self.memory, f"raw{number}.image") for number in (1, 2)]
        self.raw = []

    def __enter__(self):
        self.remove()
        for directory in (self.root, self.memory, self.xfs):
            os.makedirs(directory, exist_ok=True)
        try:
            self.make()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_):
        self.remove()

    def make(self):
        call(self.gupfs, "lab", "up", "--dir", self.lab, "--nodes", "2", "--size", self.size, "--backing", self.backing)
        size = int(call("numfmt", "--from=iec", self.size))
        if self.backing == "ram":
            call("mount", "-t", "tmpfs", "-o", f"size={2 * size + 64 * MIB}", "gupfs-report", self.memory)
        device = self.device(self.image, size)
        call("mkfs.xfs", "-q", device)
        call("mount", "-t", "xfs", device, self.xfs)
        for place in (self.mounts()[0], self.xfs):
            fill(place)
        for image in self.raw_images:
            self.raw.append(self.device(image, size // 2))
            with open(self.raw[-1], "wb", buffering=0) as file:
                write(file, size // 2)

    @staticmethod
    def device(image, size):
        """A loop device over a new file."""
        with open(image, "wb") as file:
            file.truncate(size)
        return call("losetup", "--find", "--show", image)

    def mounts(self):
        return [os.path.join(self.lab, f"n{node}", "mnt") for node in (1, 2)]

    def remove(self):
        """Everything that is there, in the order in which it depends on one another; nothing interrupts this."""
        handlers = {which: signal.signal(which, signal.SIG_IGN) for which in (signal.SIGINT, signal.SIGTERM)}
        try:
            self.take_down()
        finally:
            for which, handler in handlers.items():
                signal.signal(which, handler)

    def take_down(self):
        faults = []
        if os.path.exists(self.lab):
            self.attempt(faults, self.gupfs, "lab", "down", "--dir", self.lab)
        if os.path.ismount(self.xfs):
            self.attempt(faults, "umount", self.xfs)
        for image in filter(os.path.exists, [self.image, *self.raw_images]):
            for line in call("losetup", "--noheadings", "--output", "NAME", "--associated", image).splitlines():
                self.attempt(faults, "losetup", "--detach", line.strip())
            os.remove(image)
        if os.path.ismount(self.memory):
            self.attempt(faults, "umount", self.memory)
        if faults:
            raise Failure(f"not everything could be taken down: {'; '.join(faults)}")
        for directory in (self.lab, self.xfs, self.memory, self.root):
            if os.path.isdir(directory):
                os.rmdir(directory)

    @staticmethod
    def attempt(faults, *words):
        try:
            call(*words)
        except Failure as failure:
            faults.append(str(failure))


def fill(place):
    """Writes most of a file system once, and gives it back."""
    status = os.statvfs(place)
    left = status.f_bavail * status.f_frsize * FILL_PERCENT // 100
    path = os.path.join(place, "fill")
    with open(path, "wb", buffering=0) as file:
        write(file, left)
    os.remove(path)


def write(file, size):
    """So many bytes, on their way to the disk."""
    block = os.urandom(MIB)
    while size > 0:
        size -= file.write(block[:size])
    os.fsync(file.fileno())


def about(gupfs):
    """Version and build of the program that serves the file system."""
    with open(gupfs, "rb") as file:
        build = hashlib.file_digest(file, "sha256").hexdigest()[:12]
    return f"{call(gupfs, '--version')}, build {build}"


def main():
    parser = argparse.ArgumentParser(prog="make report", description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="tables and figures (default: all)")
    parser.add_argument("--gupfs", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--build", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--scale", choices=["auto", *SCALES], default="quick")
    parser.add_argument("--size", default="2G", help="of each file system (default: 2G)")
    parser.add_argument("--backing", choices=("ram", "file"), default="ram",
                        help="disks in memory (default), or sparse files below --dir")
    parser.add_argument("--dir", help="pages go here, and what is mounted meanwhile (default: build/report)")
    parser.add_argument("--repeats", help="runs of each point")
    parser.add_argument("--minutes", help="begin nothing after so long")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    directory = os.path.abspath(arguments.dir or os.path.join(arguments.build, "report"))
    gupfs = os.path.abspath(arguments.gupfs)
    try:
        for name in (gupfs, "losetup", "mkfs.xfs", "mount"):
            if not shutil.which(name):
                raise Failure(f"{name} is missing: run `make build`, or .ci/tools")
        if os.geteuid() != 0:
            raise Failure("mounting needs root; measure directories that are there with build/gupfs-report run")
        with Rig(os.path.join(directory, "lab-and-xfs"), gupfs, arguments.size, arguments.backing) as rig:
            setup = f"{arguments.size} on {'disks in memory' if arguments.backing == 'ram' else 'sparse files'}"
            words = ["run", *(arguments.names or ["all"]), "--build", arguments.build, "--scale", arguments.scale,
                     "--on", f"gupfs={','.join(rig.mounts())}", "--about", f"gupfs={about(gupfs)}, two nodes, {setup}",
                     "--on", f"xfs={rig.xfs}", "--about", f"xfs=a loop device of {setup}",
                     "--on", f"raw={','.join(rig.raw)}", "--overwrite", "raw",
                     "--about", f"raw=two loop devices of half of {setup}, as they are, with O_DIRECT",
                     "--results", os.path.join(directory, "results"), "--output", directory]
            for option in ("repeats", "minutes"):
                if getattr(arguments, option):
                    words += [f"--{option}", getattr(arguments, option)]
            return cli.main(words)
    except Failure as failure:
        sys.stderr.write(f"make report: {failure}\n")
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
