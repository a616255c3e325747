"""Who is faster, by what ratio: over all points that both have."""

import math
from dataclasses import dataclass

from gupfs_report.frame import ratios
from gupfs_report.tables import plain


@dataclass(frozen=True)
class Comparison:
    """One subject against another."""

    left: str
    right: str
    points: int
    # The geometric mean of left over right, and the points where it is least and most.
    ratio: float
    least: float
    least_at: str
    most: float
    most_at: str


def place_text(experiment, row):
    """Where a point is."""
    parts = [experiment.names.get(row["panel"], row["panel"]), experiment.names.get(row["series"], row["series"])]
    parts = [part for part in parts if part]
    return ", ".join([*parts, f"{experiment.x.label} {plain(row['x'])}"])


def compare(report, left, right):
    """None where they have no point in common."""
    both = ratios(report.table, left, right)
    if both.empty:
        return None
    least, most = both.loc[both["ratio"].idxmin()], both.loc[both["ratio"].idxmax()]
    mean = math.exp(sum(math.log(ratio) for ratio in both["ratio"]) / len(both))
    return Comparison(left, right, len(both), mean, least["ratio"], place_text(report.experiment, least),
                      most["ratio"], place_text(report.experiment, most))


def comparisons(report):
    """The first target against each other one, then against what the document measured."""
    first, *rest = report.targets
    document = [subject for subject in report.subjects() if subject not in report.targets]
    found = [compare(report, first, other) for other in [*rest, *document]]
    return [comparison for comparison in found if comparison]


def ratio_text(ratio):
    """As people say it."""
    if ratio >= 100:
        return f"{ratio:,.0f}x"
    return f"{ratio:.1f}x" if ratio >= 9.95 else f"{ratio:.2f}x"


def counts(report):
    """(points measured, points without a value) of the targets."""
    ours = report.table[report.table["kind"] == "measured"]
    measured = int(ours["value"].notna().sum())
    return measured, len(ours) - measured
