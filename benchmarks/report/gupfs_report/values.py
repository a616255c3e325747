"""Stored runs as a value, or as the reason why there is none."""

import statistics


def value_of(values, statistic):
    """Repeats as one value."""
    if statistic == "mean":
        return statistics.fmean(values)
    if statistic == "trimmed" and len(values) > 2:
        return statistics.fmean(sorted(values)[1:-1])
    return statistics.median(values)


def latest_build(records):
    """The build of a program that ran last; None where none ran."""
    last = max(records, key=lambda record: record["started"], default=None)
    return last["program"]["sha256"] if last else None


def measure(runs, cell, build, statistic, repeats):
    """The value of a cell with its spread, or the reason why it has none."""
    fresh = [record for record in runs if record["program"]["sha256"] == build]
    good = [record["values"][cell.metric] for record in fresh if not record["failure"] and cell.metric in record["values"]]
    failures = [record["failure"] for record in fresh if record["failure"]]
    if not good:
        if failures:
            return {"gap": f"failed: {failures[0]}"}
        if fresh:
            return {"gap": f"the program reported no {cell.metric}"}
        return {"gap": "measured with an older build of the program only" if runs else "not measured yet"}
    gap = ""
    if len(good) < repeats:
        gap = f"{len(good)} of {repeats} runs" + (f"; failed: {failures[0]}" if failures else "")
    return {"value": value_of(good, statistic), "low": min(good), "high": max(good), "runs": len(good), "gap": gap}
