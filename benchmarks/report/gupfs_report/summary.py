"""Who is faster, by what ratio: over all points that both have."""

import math
from dataclasses import dataclass

from gupfs_report.frame import ratios
from gupfs_report.tables import plain


# Closer than this is not told apart from noise.
CLOSE = 1.05


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
    return ", ".join([*parts, f"{experiment.x.label}: {plain(row['x'])}"])


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
    times = max(ratio, 1 / ratio)
    if times < CLOSE:
        return "about as fast"
    size = f"{times:,.0f}" if times >= 100 else f"{times:.1f}" if times >= 9.95 else f"{times:.2f}"
    return f"{size}x {'faster' if ratio > 1 else 'slower'}"


def against_text(comparison):
    """A comparison after the name of its left side."""
    text = ratio_text(comparison.ratio)
    return f"{text} {'as' if text.endswith('fast') else 'than'} {comparison.right}"


def counts(report):
    """(points measured, points without a value) of the targets."""
    ours = report.table[report.table["kind"] == "measured"]
    measured = int(ours["value"].notna().sum())
    return measured, len(ours) - measured
