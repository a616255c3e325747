"""Targets: a name and the directory, or the mounts of one file system, that is measured under it."""

import os
import re
import stat
from dataclasses import dataclass

from gupfs_report import Failure

# The directory that a run makes in each of a target's places, and removes.
WORK = "gupfs-report.work"


@dataclass(frozen=True)
class Target:
    """What is measured. `about`: its version and set-up, in the words of who runs it."""

    name: str
    places: tuple[str, ...]
    about: str = ""
    # The places are block devices, which will be overwritten.
    is_device: bool = False


def mounts():
    """(mount point, type, source), the last mounted last."""
    found = []
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            left, _, right = line.partition(" - ")
            point = re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), left.split()[4])
            kind, source = right.split()[:2]
            found.append((point, kind, source))
    return found


def mount_of(path):
    """The mount that a directory lies in."""
    path = os.path.realpath(path)
    best = ("/", "unknown", "unknown")
    for mount in mounts():
        point = mount[0].rstrip("/")
        if (path == point or path.startswith(point + "/")) and len(mount[0]) >= len(best[0]):
            best = mount
    return best


def are_devices(name, paths, overwrite):
    """Whether the places are block devices that may be overwritten; some alone are no target."""
    devices = [path for path in paths if os.path.exists(path) and stat.S_ISBLK(os.stat(path).st_mode)]
    if not devices:
        return False
    if len(devices) < len(paths):
        raise Failure(f"--on {name}=...: some are block devices and some are not")
    if name not in overwrite:
        raise Failure(f"{name}: {devices[0]} is a block device, and all that is on it would be lost; if that is meant, "
                      f"add --overwrite {name}")
    return True


def parse(words, about, overwrite=()):
    """Targets from `NAME=DIR[,DIR...]` or `NAME=DEVICE[,DEVICE...]`, and what is said about them in `NAME=TEXT`."""
    said = {}
    for word in about:
        name, equals, text = word.partition("=")
        if not equals:
            raise Failure(f"--about {word}: it is NAME=TEXT, as in --about gupfs='version 0.1'")
        said[name] = text
    targets = []
    for word in words:
        name, equals, places = word.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}", name):
            raise Failure(f"--on {word}: it is NAME=DIR or NAME=DIR,DIR, and a name has letters, digits, '.', '-' and '_'")
        if name in [target.name for target in targets]:
            raise Failure(f"--on {word}: {name} is there already; each target needs a name of its own")
        paths = tuple(os.path.abspath(place) for place in places.split(",") if place)
        if not paths:
            raise Failure(f"--on {word}: names no directory")
        targets.append(Target(name, paths, said.pop(name, ""), are_devices(name, paths, overwrite)))
    if said:
        raise Failure(f"--about {next(iter(said))}=...: no target of that name is given with --on")
    return targets


def check(target):
    """That a target can be measured at all; several mounts must show the same files."""
    if target.is_device:
        check_devices(target)
        return
    for place in target.places:
        if not os.path.isdir(place):
            what = "is no directory" if os.path.exists(place) else "does not exist"
            raise Failure(f"{target.name}: {place} {what}; make it, or mount what is to be measured there")
        if not os.access(place, os.W_OK | os.X_OK):
            raise Failure(f"{target.name}: {place} cannot be written to")
    first = target.places[0]
    probe = os.path.join(first, f".gupfs-report.{os.getpid()}")
    try:
        with open(probe, "wb"):
            pass
        for place in target.places[1:]:
            if not os.path.exists(os.path.join(place, os.path.basename(probe))):
                raise Failure(f"{target.name}: a file made in {first} is not seen in {place}: they must be mounts of "
                              "one file system")
    except OSError as error:
        raise Failure(f"{target.name}: cannot make a file in {first}: {error.strerror}") from error
    finally:
        if os.path.exists(probe):
            os.remove(probe)


def check_devices(target):
    """That nobody uses them: no mount, no other program that claims them."""
    for place in target.places:
        try:
            os.close(os.open(place, os.O_RDWR | os.O_EXCL))
        except OSError as error:
            raise Failure(f"{target.name}: {place} cannot be taken: {error.strerror}; is it mounted?") from error


def device_size(path):
    """Bytes of a block device."""
    with open(path, "rb") as file:
        return file.seek(0, os.SEEK_END)


def room(target):
    """Bytes and files that are free; files are None where the file system does not count them."""
    if target.is_device:
        return min(map(device_size, target.places)), None
    status = os.statvfs(target.places[0])
    return status.f_bavail * status.f_frsize, status.f_favail if status.f_files else None


def backing(source):
    """What a mount lies on: of a loop device its file, for its number is drawn anew each time."""
    name = os.path.basename(source)
    if source.startswith("/dev/loop"):
        try:
            with open(f"/sys/block/{name}/loop/backing_file", encoding="utf-8", errors="surrogateescape") as file:
                return file.read().strip()
        except OSError:
            pass
    return source


def identity(target):
    """What must not change if runs are to stand on one page: the file system, not its contents."""
    places = []
    for place in target.places:
        if target.is_device:
            places.append({"path": backing(place), "mount": "", "type": "device", "source": "", "size": device_size(place)})
            continue
        point, kind, source = mount_of(place)
        status = os.statvfs(place)
        places.append({"path": place, "mount": point, "type": kind, "source": backing(source),
                       "size": status.f_blocks * status.f_frsize if kind not in ("overlay",) else 0})
    return {"name": target.name, "about": target.about, "places": places}
