"""Every table and figure that can be measured."""

import fnmatch

from gupfs_report import Failure
from gupfs_report.catalog import gpfs14, gupfs2002, ncar2008, sdsc2004

EXPERIMENTS = {experiment.id: experiment
               for module in (gupfs2002, gpfs14, sdsc2004, ncar2008) for experiment in module.EXPERIMENTS}


def find(patterns):
    """The experiments that names, documents or patterns mean, in the order of the catalog."""
    wanted = set()
    for pattern in patterns or ["*"]:
        found = {name for name, experiment in EXPERIMENTS.items()
                 if pattern in ("all", experiment.document) or fnmatch.fnmatch(name, pattern)}
        if not found:
            close = [name for name in EXPERIMENTS if pattern.lower() in name]
            hint = f"; is it one of {', '.join(close)}?" if close else ""
            raise Failure(f"{pattern}: no such table, figure or document{hint} `gupfs-report list` names all")
        wanted |= found
    return [experiment for name, experiment in EXPERIMENTS.items() if name in wanted]
