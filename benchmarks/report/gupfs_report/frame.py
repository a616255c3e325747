"""All numbers of a page as one pandas table: what was measured, what the document has, and gaps with reasons."""

from dataclasses import dataclass

import pandas as pd

from gupfs_report import catalog, documents
from gupfs_report.scale import SCALES
from gupfs_report.values import latest_build, measure

COLUMNS = ["panel", "series", "x", "subject", "kind", "value", "low", "high", "runs", "gap", "first", "last", "job"]


@dataclass(frozen=True)
class Evidence:
    """A stored run that a page rests on."""

    target: str
    job: str
    number: int
    record: dict
    log: str


@dataclass
class Report:
    """What one page shows."""

    experiment: object
    scale: object
    repeats: int
    table: pd.DataFrame
    targets: list[str]
    identities: dict[str, dict]
    # Runs, failed ones among them; and warnings of what is not shown.
    evidence: list[Evidence]
    warnings: list[str]

    def subjects(self):
        """Targets first, then what the document measured, each in its order."""
        rest = [subject for subject in self.table["subject"].unique() if subject not in self.targets]
        return self.targets + rest


class Reader:
    """Reads the runs of a session; which build of each program counts is the one that ran last."""

    def __init__(self, store):
        self.store = store
        self.session = store.session()

    def runs(self, target, key, job, repeats):
        """The stored runs of a job."""
        found = (self.store.record(target, key, job, number) for number in range(1, repeats + 1))
        return [record for record in found if record]

    def report(self, name):
        """The page's numbers of an experiment that was run."""
        experiment = catalog.EXPERIMENTS[name]
        asked = self.session["experiments"][name]
        scale, repeats = SCALES[asked["scale"]], asked["repeats"]
        targets = self.session["targets"]
        rows, evidence, warnings = [], {}, []
        cells = experiment.cells(scale)
        builds = self.builds(cells, repeats)
        identities = {target: self.store.identity(target, key) for target, key in targets.items()}
        # A target on which nothing of this can be run is not shown.
        targets = {target: key for target, key in targets.items()
                   if any(cell.job and not kind_gap(identities[target], cell.job) for cell in cells)}
        for cell in cells:
            for target, key in targets.items():
                row = {"panel": cell.panel, "series": cell.series, "x": float(cell.x), "subject": target,
                       "kind": "measured", "gap": cell.gap, "runs": 0, "job": cell.job.key if cell.job else ""}
                if cell.job and kind_gap(identities[target], cell.job):
                    row["gap"] = kind_gap(identities[target], cell.job)
                elif cell.job:
                    runs = self.runs(target, key, cell.job, repeats)
                    for record in runs:
                        number = record["number"]
                        evidence.setdefault((target, cell.job.key, number), Evidence(
                            target, str(cell.job), number, record, self.store.log(record, target, key)))
                    row.update(measure(runs, cell, builds.get((target, cell.job.program)), experiment.statistic, repeats))
                rows.append(row)
        for number in documents.published(experiment.document, experiment.source, experiment.subject,
                                          by_column(experiment)):
            rows.append({"panel": number.panel, "series": number.series, "x": number.x, "subject": number.subject,
                         "kind": "level" if number.x is None else "document", "value": number.value,
                         "gap": "", "first": number.first, "last": number.last, "runs": 0, "job": ""})
        for target, key in targets.items():
            others = self.store.others(target, key)
            if others:
                warnings.append(f"{target}: results of another machine, file system or set-up are stored as well "
                                f"({len(others)}); they are not shown here")
        identities = {target: identities[target] for target in targets}
        if len({str(identity["machine"]) for identity in identities.values()}) > 1:
            warnings.append("The targets were measured on different machines: their ratios say little.")
        return Report(experiment, scale, repeats, pd.DataFrame(rows, columns=COLUMNS), list(targets), identities,
                      list(evidence.values()), warnings)

    def builds(self, cells, repeats):
        """(target, program) -> the build that ran last: older ones are not mixed with it."""
        found = {}
        for job in {cell.job.key: cell.job for cell in cells if cell.job}.values():
            for target, key in self.session["targets"].items():
                found.setdefault((target, job.program), []).extend(self.runs(target, key, job, repeats))
        return {place: latest_build(records) for place, records in found.items()}


def kind_gap(identity, job):
    """Why a job cannot be run on a target of this kind."""
    places = identity["target"]["places"]
    return job.gap(places[0]["type"] == "device", len(places))


def by_column(experiment):
    """What the columns of the document's table are."""
    return "x" if "x" in experiment.columns else "series" if "series" in experiment.columns else "subject"


def ratios(table, left, right):
    """Of all cells that both have: left over right, by panel, series and x."""
    cells = table[table["kind"] != "level"].dropna(subset=["value"])
    keys = ["panel", "series", "x"]
    both = cells[cells["subject"] == left].merge(cells[cells["subject"] == right], on=keys, suffixes=("", "_right"))
    both["ratio"] = both["value"] / both["value_right"]
    return both[[*keys, "value", "value_right", "ratio"]]
