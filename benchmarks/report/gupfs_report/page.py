"""Pages: one for each table or figure with everything in it, and an index."""

import html
import math
import os

import matplotlib
import pandas

from gupfs_report import VERSION, Failure, documents, plots
from gupfs_report.frame import Reader
from gupfs_report.scale import size_text
from gupfs_report.store import write_whole
from gupfs_report.summary import against_text, comparisons, counts, ratio_text
from gupfs_report.tables import Tables

HERE = os.path.dirname(os.path.abspath(__file__))


def text(value):
    return html.escape(str(value))


def write(store, output, names=None):
    """Writes the pages of these experiments (None: of all that were run) and the index. Returns its path."""
    reader = Reader(store)
    known = list(reader.session["experiments"])
    missing = [name for name in names or [] if name not in known]
    if missing and not set(names) & set(known):
        raise Failure(f"{missing[0]}: was not measured here; measure it with `gupfs-report run {missing[0]}`")
    try:
        for directory in ("", "plots", "data"):
            os.makedirs(os.path.join(output, directory), exist_ok=True)
    except OSError as error:
        raise Failure(f"{output}: cannot be made: {error.strerror}") from error
    reports = [reader.report(name) for name in catalog_order(known)]
    for report in reports:
        if not names or report.experiment.id in names:
            write_page(store, report, reports, output)
    path = os.path.join(output, "index.html")
    write_whole(path, index(reports))
    return path


def catalog_order(names):
    from gupfs_report import catalog
    return [name for name in catalog.EXPERIMENTS if name in names]


def source_of(report):
    return documents.source(report.experiment.document, report.experiment.source)


def write_page(store, report, reports, output):
    """One page with its plots and data."""
    name = report.experiment.id
    drawn = plots.files(report)
    if drawn:
        write_whole(os.path.join(output, "plots", name + ".svg"), drawn[1])
        with open(os.path.join(output, "plots", name + ".png"), "wb") as file:
            file.write(drawn[2])
    report.table.to_csv(os.path.join(output, "data", name + ".csv"), index=False)
    write_whole(os.path.join(output, name + ".html"), experiment_page(store, report, reports, drawn[0] if drawn else None))


def frame(title, body, reports=(), here=""):
    """A whole page."""
    with open(os.path.join(HERE, "style.css"), encoding="ascii") as file:
        style = file.read()
    document = next((report.experiment.document for report in reports if report.experiment.id == here), None)
    links = "".join(
        f'<a href="{text(report.experiment.id)}.html"{" aria-current=page" if report.experiment.id == here else ""}>'
        f'{text(report.experiment.document)} {text(source_of(report)["name"])}</a>'
        for report in reports if report.experiment.document == document)
    menu = f'<nav><a href="index.html"{"" if here else " aria-current=page"}>Overview</a>{links}</nav>'
    return (f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{text(title)}</title>\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
            f"<style>\n{style}</style>\n</head>\n<body>\n{menu}\n<main>\n{body}\n</main>\n</body>\n</html>\n")


def experiment_page(store, report, reports, plot):
    """The page of a table or figure."""
    experiment, source = report.experiment, source_of(report)
    document = documents.load(experiment.document)
    name = experiment.id
    tables = Tables(report)
    parts = [
        f'<header><p class="where">{text(experiment.document)}, {text(source["where"])}</p>'
        f'<h1>{text(source["name"])}: {text(source["title"])}</h1>'
        f'<p class="by">{text(document["title"])}. {text(document["by"])}.</p></header>',
        "".join(f'<p class="warning">{text(warning)}</p>' for warning in report.warnings),
        summary_section(report),
        f'<section><h2>Plot</h2><figure class="plot">{plot or "<p>Nothing to draw: no point has a value.</p>"}</figure>'
        f"{plot_notes(report)}"
        + (f'<p class="links"><a href="plots/{name}.svg">SVG</a> <a href="plots/{name}.png">PNG</a> ' if plot else "<p>")
        + f'<a href="data/{name}.csv">all numbers (CSV)</a></p></section>',
        f"<section><h2>Table</h2>{table_notes(report)}{tables.html()}</section>",
        says_section(source), scale_section(report), machine_section(report), logs_section(store, report)]
    return frame(f"{experiment.document} {source['name']}", "\n".join(part for part in parts if part), reports, name)


def plot_notes(report):
    kinds = set(report.table["kind"])
    words = ["Bars behind points: lowest to highest run." if report.repeats > 1 else ""]
    if "level" in kinds:
        words.append("Dashed lines without points are numbers that the document's text gives for a range of the axis; "
                     "its curves are not in the text, and no point is read off them.")
    if not kinds & {"level", "document"}:
        words.append("The document's text gives no number for this figure: its curves are only in its picture. What it "
                     "says about them stands below.")
    return f'<p class="note">{text(" ".join(word for word in words if word))}</p>'


def table_notes(report):
    names = {"median": "the median", "mean": "the mean",
             "trimmed": "the mean without the highest and the lowest"}
    # Of two runs nothing can be left out.
    statistic = "median" if report.experiment.statistic == "trimmed" and report.repeats < 3 else report.experiment.statistic
    words = [f"{report.experiment.y.label}."]
    if report.repeats > 1:
        words.append(f"Each number of ours is {names[statistic]} of {report.repeats} runs, "
                     "with the lowest and highest beside it.")
    if len(report.targets) > 1 and report.repeats > 1:
        words.append("Bold: every run was faster than every run of the others.")
    return f'<p class="note">{text(" ".join(words))}</p>'


def bar(ratio):
    """A ratio as a bar from 1, to the right if it is faster; the ends are 100 times."""
    part = max(-1.0, min(1.0, math.log10(ratio) / 2))
    side = "left:50%" if part >= 0 else f"left:{50 + part * 50:.1f}%"
    return (f'<span class="bar" aria-hidden="true"><span class="{"more" if part >= 0 else "less"}" '
            f'style="{side};width:{abs(part) * 50:.1f}%"></span></span>')


def comparison_card(comparison):
    """One comparison in words."""
    return (f'<div class="card"><p class="who"><b>{text(comparison.left)}</b> against <b>{text(comparison.right)}</b></p>'
            f'<p class="ratio{"" if comparison.ratio >= 1 else " slower"}">{ratio_text(comparison.ratio)}</p>'
            f'{bar(comparison.ratio)}<p class="note">geometric mean of {comparison.points} points; from '
            f"{ratio_text(comparison.least)} ({text(comparison.least_at)}) to {ratio_text(comparison.most)} "
            f"({text(comparison.most_at)})</p></div>")


def then_card(found):
    """The first target against what the document measured."""
    lines = "".join(f'<p><span>{text(comparison.right)}</span> <b>{ratio_text(comparison.ratio)}</b> '
                    f"{bar(comparison.ratio)}</p>" for comparison in found)
    return (f'<div class="card then"><p class="who"><b>{text(found[0].left)}</b> against the document</p>{lines}'
            '<p class="note">Its numbers are of its machines and years: compare how they change along the axis, not how '
            "large they are.</p></div>")


def summary_section(report):
    """Who is faster by what ratio."""
    found = comparisons(report)
    ours = [comparison for comparison in found if comparison.right in report.targets]
    then = [comparison for comparison in found if comparison.right not in report.targets]
    cards = "".join(map(comparison_card, ours)) + (then_card(then) if then else "")
    measured, gaps = counts(report)
    words = f"{measured} points measured"
    if gaps:
        words += f", {gaps} without a value: each says why in the table"
    return f'<section class="summary"><div class="cards">{cards}</div><p class="note">{words}.</p></section>'


def says_section(source):
    """The document's own words."""
    items = ""
    for quote in source.get("says", []):
        who = f"<b>{text(quote['subject'])}</b> " if "subject" in quote else ""
        items += f"<li>{who}&ldquo;{text(quote['text'])}&rdquo;</li>"
    oddity = f'<p class="note">{text(source["oddity"])}</p>' if "oddity" in source else ""
    return f'<section><h2>What the document says</h2><ul class="says">{items}</ul>{oddity}</section>' if items else ""


def scale_section(report):
    """What differs from the document."""
    rows = "".join(f"<tr><th scope=row>{text(what)}</th><td>{text(there)}</td><td>{text(here)}</td></tr>"
                   for what, there, here in report.experiment.scaled(report.scale))
    notes = "".join(f"<li>{text(note)}</li>" for note in [*report.experiment.notes, *cache_notes(report)])
    return (f'<section><h2>Scale and differences</h2><div class="scroll"><table class="words"><thead><tr>'
            f'<th>at scale {text(report.scale.name)}</th><th>in the document</th><th>here</th></tr></thead>'
            f"<tbody>{rows}</tbody></table></div><ul>{notes}</ul></section>")


def cache_notes(report):
    """Which caches could hold the data, and what stands for nodes."""
    most = max((evidence.record["job"]["room_bytes"] for evidence in report.evidence), default=0)
    memory = min((identity["machine"]["memory_bytes"] for identity in report.identities.values()), default=0)
    notes = []
    if 0 < most < memory / 2:
        notes.append(f"The largest point holds {size_text(most)}, the machine {size_text(memory)} of memory: what is read "
                     "may come from caches, and what is written may still be in them.")
    ranks = max((evidence.record["job"]["ranks"] for evidence in report.evidence), default=0)
    cores = min((identity["machine"]["cores"] for identity in report.identities.values()), default=0)
    if ranks > cores:
        notes.append(f"Up to {ranks} processes ran on {cores} processors: they took turns, with one another and with "
                     "what serves a file system in user space.")
    for name, identity in report.identities.items():
        count = len(identity["target"]["places"])
        notes.append(f"{name}: processes stand for nodes, on {count} mounts in turn." if count > 1 else
                     f"{name}: processes stand for nodes, all on one mount.")
    return notes


def machine_section(report, with_runs=True):
    """The machine, the targets, the versions."""
    parts = []
    for name, identity in report.identities.items():
        places = identity["target"]["places"]
        lines = [("about", identity["target"]["about"])] if identity["target"]["about"] else []
        for place in places:
            size = f", {size_text(place['size'])}" if place["size"] else ""
            lines.append(("directory", f"{place['path']} ({place['type']} of {place['source']}{size})"))
        parts.append((name, lines))
    machines = {str(identity["machine"]): identity["machine"] for identity in report.identities.values()}
    for machine in machines.values():
        parts.append((f"machine {machine['host']}", [
            ("processor", f"{machine['processor']}, {machine['cores']} cores"),
            ("memory", size_text(machine["memory_bytes"])), ("system", f"{machine['system']}, {machine['kernel']}"),
            ("MPI", machine["mpi"])]))
    if with_runs:
        parts += run_facts(report)
    blocks = "".join(f"<div><h3>{text(title)}</h3><dl>" + "".join(
        f"<dt>{text(key)}</dt><dd>{text(value)}</dd>" for key, value in lines) + "</dl></div>" for title, lines in parts)
    return f'<section><h2>Machine and versions</h2><div class="facts">{blocks}</div></section>'


def run_facts(report):
    """The programs and times of the runs of a page."""
    builds = sorted({(program["name"], program.get("version", ""), program["sha256"])
                     for program in (evidence.record["program"] for evidence in report.evidence)})
    parts = [("versions", [(name, f"{version} build {sha}") for name, version, sha in builds] + [
        ("gupfs-report", f"{VERSION} (pages: matplotlib {matplotlib.__version__}, pandas {pandas.__version__})")])]
    when = sorted(evidence.record["started"][:19].replace("T", " ") for evidence in report.evidence)
    loads = [evidence.record["load"] for evidence in report.evidence]
    if when:
        parts.append(("runs", [("measured", f"{when[0]} to {when[-1]} UTC"),
                               ("load average", f"{min(loads):.1f} to {max(loads):.1f}")]))
    return parts


def logs_section(store, report):
    """Every run with its command and raw log."""
    parts = []
    for evidence in sorted(report.evidence, key=lambda e: (report.targets.index(e.target), e.job, e.number)):
        record = evidence.record
        state = f"failed: {record['failure']}" if record["failure"] else f"{record['seconds']:.2f} s"
        parts.append(f'<details{" class=failed" if record["failure"] else ""}><summary><b>{text(evidence.target)}</b> '
                     f"{text(evidence.job)}, run {evidence.number}: {text(state)}</summary>"
                     f"<pre>{text(evidence.log)}</pre></details>")
    return (f'<section><h2>Commands and raw logs</h2><p class="note">{len(parts)} runs; the same as files below '
            f"{text(os.path.basename(store.root))}/runs.</p>{''.join(parts)}</section>")


def index_row(report):
    """A page in the overview."""
    found = [comparison for comparison in comparisons(report) if comparison.right in report.targets]
    measured, gaps = counts(report)
    cells = "".join(f'<p>{bar(c.ratio)} <b>{text(c.left)}</b> {against_text(c)}<br>'
                    f"<small>from {ratio_text(c.least)} to {ratio_text(c.most)}</small></p>" for c in found)
    source = source_of(report)
    return (f'<tr><th scope=row><a href="{text(report.experiment.id)}.html">{text(source["name"])}</a></th>'
            f'<td>{text(source["title"])}</td><td class="compare">{cells}</td><td>{measured}</td><td>{gaps}</td>'
            f"<td>{text(report.scale.name)}</td></tr>")


def index(reports):
    """The overview."""
    sections = []
    for name in documents.NAMES:
        mine = [report for report in reports if report.experiment.document == name]
        if mine:
            data = documents.load(name)
            rows = "".join(map(index_row, mine))
            sections.append(
                f'<section><h2>{text(name)}</h2><p class="by">{text(data["title"])}. {text(data["by"])}.</p>'
                '<div class="scroll"><table class="words index"><colgroup><col style="width:13%"><col style="width:36%"><col style="width:29%">'
                '<col span="3"></colgroup><thead><tr><th>Page</th><th>What</th><th>Who is faster</th>'
                f"<th>Points</th><th>Gaps</th><th>Scale</th></tr></thead><tbody>{rows}</tbody></table></div></section>")
    body = ('<header><h1>Reference tables and figures, measured here</h1><p class="by">Each page has the rows and axes of '
            "the document, its numbers beside ours, the machine, the commands and the raw logs. Ratios are geometric means "
            "of all points that both have, with the least and the most; bars go from 100 times slower to 100 times faster. "
            "A gap is a point that was not measured: its page says why.</p></header>"
            + "".join(sections) + (machine_section(reports[0], with_runs=False) if reports else ""))
    return frame("gupfs-report", body, reports)
