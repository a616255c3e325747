"""What this machine is: for the page, and so that runs of different machines are never mixed."""

import os
import platform
import subprocess


def first_line(path, prefix=""):
    """The first line of a file with this prefix, without it; empty where there is none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith(prefix):
                    return line[len(prefix):].strip(" \t\n:=\"")
    except OSError:
        pass
    return ""


def output_of(words):
    """The first line that a command prints; empty where it cannot be run."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    return lines[0].strip() if lines else ""


def mpi_version(mpiexec):
    """What starts the processes, and its version."""
    try:
        done = subprocess.run([*mpiexec[:1], "--version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    version = next((line.split()[-1] for line in lines if line.lower().startswith("version")), "")
    if not lines:
        return ""
    return f"MPICH {version}" if version else lines[0]


def facts(mpiexec):
    """The machine: what does not change between two runs on it."""
    return {
        "host": platform.node(),
        "machine_id": first_line("/etc/machine-id"),
        "processor": first_line("/proc/cpuinfo", "model name") or platform.machine(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": first_line("/etc/os-release", "PRETTY_NAME"),
        "kernel": f"{platform.system()} {platform.release()}",
        "mpi": mpi_version(mpiexec),
    }


def load_average():
    """Of the last minute: how busy the machine was otherwise."""
    return os.getloadavg()[0]
