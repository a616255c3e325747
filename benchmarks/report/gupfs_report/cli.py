"""The command line."""

import argparse
import os
import shlex
import sys

from gupfs_report import VERSION, Failure, catalog, documents, launch, targets
from gupfs_report.engine import Engine, jobs_of
from gupfs_report.scale import FULL, GIB, QUICK, SCALES, size_text
from gupfs_report.store import Store

HERE = os.path.dirname(os.path.abspath(__file__))
EXAMPLES = """examples:
  gupfs-report list                                             the tables and figures
  gupfs-report run gupfs-2002-table-1 --on gupfs=/mnt/gupfs --on ext4=/srv/ext4
  gupfs-report run gpfs-1.4 --on gupfs=/lab/n1/mnt,/lab/n2/mnt  all of a document; two mounts are two nodes
  gupfs-report run all --on gupfs=/mnt/gupfs --scale normal --minutes 60
  gupfs-report render                                           the pages again, from what is stored

A run that was interrupted (Ctrl-C, kill -9) goes on when the same command is given again: points that are
stored are not measured again. What failed is tried again.
"""


def parser():
    """All commands and options."""
    top = argparse.ArgumentParser(
        prog="gupfs-report", epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Measures tables and figures of the reference documents on directories of this machine, and "
        "writes pages with the document's figures beside ours.")
    top.add_argument("--version", action="version", version=f"gupfs-report {VERSION}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    lists = commands.add_parser("list", help="name the tables and figures, and what each runs")
    lists.add_argument("names", nargs="*", metavar="NAME", help="tables, figures, documents or patterns (default: all)")
    lists.add_argument("--scale", choices=SCALES, default="quick", help="for --jobs and --gaps (default: quick)")
    lists.add_argument("--jobs", action="store_true", help="the commands of each")
    lists.add_argument("--gaps", action="store_true", help="what is left out, and why")
    run = commands.add_parser("run", help="measure, then write the pages", epilog=EXAMPLES,
                              formatter_class=argparse.RawDescriptionHelpFormatter)
    run.add_argument("names", nargs="+", metavar="NAME", help="tables, figures, documents, patterns, or all")
    run.add_argument("--on", action="append", required=True, metavar="NAME=DIR[,DIR...]", dest="targets",
                     help="measure in this directory, under this name; several directories are mounts of one file "
                     "system, and processes are placed on them in turn. May be given several times")
    run.add_argument("--overwrite", action="append", default=[], metavar="NAME",
                     help="this target of --on is one or several block devices, and what is on them may be lost")
    run.add_argument("--about", action="append", default=[], metavar="NAME=TEXT",
                     help="the version and set-up of a target, for its page; results of another text are not mixed")
    run.add_argument("--scale", choices=["auto", *SCALES], default="auto",
                     help="how large: auto takes the largest that fits memory, room and time (default)")
    run.add_argument("--repeats", type=positive, metavar="N", help="runs of each point (default: by scale)")
    run.add_argument("--minutes", type=positive_time, metavar="M",
                     help="begin nothing after so long; what is missing then shows as gaps")
    run.add_argument("--mpiexec", metavar="COMMAND", help="what starts the processes (default: $MPIEXEC or mpiexec)")
    run.add_argument("--no-pages", action="store_true", help="measure only")
    render = commands.add_parser("render", help="write the pages from what is stored")
    render.add_argument("names", nargs="*", metavar="NAME", help="only these (default: all that was run)")
    for command in (run, render):
        command.add_argument("--results", default="gupfs-report.results", metavar="DIR",
                             help="where runs are stored (default: gupfs-report.results)")
        command.add_argument("--output", metavar="DIR", help="where pages go (default: DIR of --results, /pages)")
        command.add_argument("--build", default=default_build(), help=argparse.SUPPRESS)
    return top


def default_build():
    """benchmarks/build: where the command was built to, or of the sources that this is."""
    return os.environ.get("GUPFS_BENCHMARKS") or os.path.join(os.path.dirname(os.path.dirname(HERE)), "build")


def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text}: at least 1")
    return value


def positive_time(text):
    value = float(text)
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"{text}: a number of minutes")
    return value


def list_command(arguments):
    """Prints experiments, and with options their jobs and gaps."""
    scale = SCALES[arguments.scale]
    document = None
    for experiment in catalog.find(arguments.names):
        if experiment.document != document:
            document = experiment.document
            data = documents.load(document)
            print(f"{document}: {data['title']} ({data['by']})")
        source = documents.source(document, experiment.source)
        print(f"  {experiment.id:<22} {source['name']}: {source['title']}")
        cells = experiment.cells(scale)
        if arguments.jobs:
            for job in jobs_of([experiment], scale):
                print(f"      mpiexec -n {job.ranks} {job.program} {shlex.join(job.options)}")
        if arguments.gaps:
            reasons = {}
            for cell in cells:
                if not cell.job:
                    reasons[cell.gap] = reasons.get(cell.gap, 0) + 1
            for reason, count in reasons.items():
                print(f"      {count} of {len(cells)} points: {reason}")
    return 0


def memory_available():
    with open("/proc/meminfo", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))


def choose_scale(experiments, target_list, minutes):
    """The largest scale that fits: room of each target, memory of this machine, time. Says why."""
    free = min(targets.room(target)[0] for target in target_list)
    memory, minutes = memory_available(), minutes or 30
    for scale in sorted(SCALES.values(), key=lambda scale: -scale.requests):
        jobs = jobs_of(experiments, scale)
        room = max((job.room_bytes for job in jobs), default=0)
        # A guess, to choose among three: 300 MB/s, 2,000 files/s, half a second to start.
        guess = sum(job.room_bytes * 2 / 300e6 + job.room_files * 10 / 2000 + 0.5 for job in jobs)
        guess *= scale.repeats * len(target_list) / 60
        if scale is QUICK or (room * 1.2 < free and (scale is not FULL or memory > 4 * GIB) and guess < minutes):
            return scale, (f"{scale.name}: its largest point takes {size_text(room)} ({size_text(free)} are free), "
                           f"all about {guess:.0f} min")
    raise AssertionError("the last scale always fits")


def run_command(arguments):
    """Measures, then renders."""
    experiments = catalog.find(arguments.names)
    target_list = targets.parse(arguments.targets, arguments.about, arguments.overwrite)
    for target in target_list:
        targets.check(target)
    mpiexec = shlex.split(arguments.mpiexec) if arguments.mpiexec else launch.default_mpiexec()
    if arguments.scale == "auto":
        scale, why = choose_scale(experiments, target_list, arguments.minutes)
        sys.stderr.write(f"scale {why}\n")
    else:
        scale = SCALES[arguments.scale]
    store = Store(arguments.results)
    with store.locked():
        engine = Engine(store, arguments.build, mpiexec, target_list)
        outcome = engine.run(experiments, scale, arguments.repeats, arguments.minutes)
    sys.stderr.write(f"{outcome.done} runs measured, {outcome.kept} were stored already, {outcome.failed} failed, "
                     f"{outcome.left} not begun\n")
    if outcome.interrupted:
        sys.stderr.write("interrupted: the same command goes on from here\n")
        return 130
    if not arguments.no_pages:
        render(store, arguments.output, [experiment.id for experiment in experiments])
    return 1 if outcome.failed else 0


def render(store, output, names):
    """Writes the pages."""
    try:
        from gupfs_report import page
    except ImportError as error:
        raise Failure(f"{error.name} is missing: pages need what report/requirements.txt names; run "
                      "benchmarks/build/gupfs-report, which `make report-tool` builds with them") from error
    path = page.write(store, output or os.path.join(store.root, "pages"), names)
    print(path)


def main(words=None):
    """The exit status: 0 all measured, 1 something failed, 2 a command line that makes no sense, 130 interrupted."""
    arguments = parser().parse_args(words)
    try:
        if arguments.command == "list":
            return list_command(arguments)
        if arguments.command == "run":
            return run_command(arguments)
        render(Store(arguments.results), arguments.output,
               [experiment.id for experiment in catalog.find(arguments.names)] if arguments.names else None)
        return 0
    except Failure as failure:
        sys.stderr.write(f"gupfs-report: {failure}\n")
        return 1
    except BrokenPipeError:
        return 1
