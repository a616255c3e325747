"""The documents' own figures: copied from their texts into documents/*.json, never computed or read off a curve.

A table has all its numbers. A figure has `values` (the table that its text names as its data), `points` and
`levels` (numbers that the text gives: for one place, or for a range of the axis), and `says`: the sentences.
"""

import json
import os
from dataclasses import dataclass
from functools import cache

from gupfs_report import Failure

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "documents")
NAMES = ("gupfs-2002", "gpfs-1.4", "sdsc-2004", "ncar-2008")


@dataclass(frozen=True)
class Published:
    """A number of a document."""

    subject: str
    panel: str
    series: str
    # None: a level, from `first` to `last` (None: to the end of the axis).
    x: float | None
    value: float
    first: float | None = None
    last: float | None = None


@cache
def load(name: str) -> dict:
    """The data of a document."""
    path = os.path.join(HERE, name + ".json")
    try:
        with open(path, encoding="ascii") as file:
            return json.load(file)
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}; the installation is incomplete") from error


def source(document: str, name: str) -> dict:
    """A table or figure of a document."""
    data = load(document)
    return data["tables"].get(name) or data["figures"][name]


def published(document: str, name: str, subject: str, by_column: str) -> list[Published]:
    """Its numbers. `by_column`: what the columns of a table are, `x`, `series` or `subject`; the lines are the other."""
    data = source(document, name)
    if "values" in data:
        data = {**load(document)["tables"][data["values"]]}
    found = []
    panels = data.get("panels") or ({"": data["rows"]} if "rows" in data else {})
    for panel, rows in panels.items():
        for line, values in rows.items():
            for column, value in zip(data["columns"], values, strict=True):
                if by_column == "x":
                    found.append(Published(subject, panel, line, float(column), value))
                elif by_column == "series":
                    found.append(Published(subject, panel, str(column), float(line), value))
                else:
                    found.append(Published(column, panel, "", float(line), value))
    for point in data.get("points", []):
        found.append(Published(point["subject"], point.get("panel", ""), point["series"], float(point["x"]),
                               point["value"]))
    for level in data.get("levels", []):
        found.append(Published(level["subject"], level.get("panel", ""), level["series"], None, level["value"],
                               level.get("first"), level.get("last")))
    return found
