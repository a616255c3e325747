"""Plots of a report: PNG and SVG files, and SVG for the page, whose colours follow the reader's light or dark."""

import io
import math
import re
import textwrap

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter  # noqa: E402

# Colours that are told apart by people who see colours differently (Okabe and Ito), readable on light and dark.
OURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#9467bd", "#8c564b"]
THEIRS = ["#8a8a8a", "#b59400", "#5a9bd4", "#a0522d", "#6b8e23", "#777777"]
MANY = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b59400", "#9467bd", "#8c564b", "#5a9bd4"]
MARKERS = ["o", "s", "^", "D", "v", "P", "X", "*"]
DASHES = ["-", "--", ":", "-."]
# Replaced in SVG by the page's own colours.
INK, FAINT = "#010203", "#040506"
# Targets have one axis beside one another, unless it laid the curves of the slowest on the ground: it reached so many
# times as far as theirs.
OWN_AXIS_FROM = 5
COLUMNS_MAX = 3
# Characters of a title, by the number of columns.
TITLE_WIDTH = {1: 80, 2: 60, 3: 38}
# Inches of a whole plot.
WIDTH = 11.4

STYLE = {
    "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 10, "axes.edgecolor": FAINT,
    "axes.labelcolor": INK, "text.color": INK, "xtick.color": INK, "ytick.color": INK, "axes.titlesize": 11,
    "axes.titleweight": "bold", "axes.titlelocation": "left", "axes.spines.top": False, "axes.spines.right": False,
    "axes.grid": True, "grid.color": FAINT, "grid.alpha": 0.18, "axes.axisbelow": True, "legend.frameon": False,
    "lines.linewidth": 1.8, "lines.markersize": 5, "figure.facecolor": "none", "axes.facecolor": "none",
    "savefig.facecolor": "none",
}


def place_text(value):
    """A tick of a horizontal axis: sizes and counts in powers of two."""
    if value >= 1024 and value % 1024 == 0:
        return f"{value / 1024:g}Ki"
    return f"{value:g}"


def number_text(value, _=None):
    """A tick of a vertical axis."""
    if value == 0:
        return "0"
    if abs(value) >= 1e6:
        return f"{value / 1e6:g}M"
    if abs(value) >= 1e3:
        return f"{value / 1e3:g}k"
    return f"{value:g}"


def keys_of(table, dimensions, order):
    """The values of some columns, in the order in which they appear; subjects in theirs."""
    found = list(dict.fromkeys(tuple(row) for row in table[list(dimensions)].itertuples(index=False)))
    if "subject" in dimensions:
        at = list(dimensions).index("subject")
        found.sort(key=lambda key: order.index(key[at]))
    return found


def rows_of(table, dimensions, key):
    """The rows with these values."""
    chosen = table
    for dimension, value in zip(dimensions, key):
        chosen = chosen[chosen[dimension] == value]
    return chosen


class Plot:
    """The figure of a report."""

    def __init__(self, report):
        self.report, self.experiment = report, report.experiment
        self.table = report.table
        self.subjects = report.subjects()
        self.used = {}

    def color(self, first):
        """Of a curve: targets strong, the document's paler."""
        if self.experiment.curve[0] != "subject":
            keys = [key[0] for key in keys_of(self.table, self.experiment.curve[:1], self.subjects)]
            return MANY[keys.index(first) % len(MANY)]
        if first in self.report.targets:
            return OURS[self.report.targets.index(first) % len(OURS)]
        rest = [subject for subject in self.subjects if subject not in self.report.targets]
        return THEIRS[rest.index(first) % len(THEIRS)]

    def style(self, key):
        """Colour, marker and dashes of a curve."""
        first, *more = key
        second = 0
        if more:
            values = list(dict.fromkeys(self.table[self.experiment.curve[1]]))
            second = values.index(more[0])
        ours = self.experiment.curve[0] != "subject" or first in self.report.targets
        return {"color": self.color(first), "marker": MARKERS[second % len(MARKERS)],
                "linestyle": DASHES[second % len(DASHES)] if more else ("-" if ours else "--"),
                "markerfacecolor": self.color(first) if ours else "none"}

    def label(self, key):
        names = self.experiment.names
        return ", ".join(str(names.get(part, part)) for part in key if part != "")

    def title(self, key):
        return self.label(key) or self.label(("",))

    def draw(self):
        """The whole figure; None where nothing has a value."""
        drawable = self.table.dropna(subset=["value"])
        if drawable.empty:
            return None
        facets = keys_of(self.table, self.experiment.facets, self.subjects)
        shown = [key for key in facets if not rows_of(drawable, self.experiment.facets, key).empty]
        columns = 2 if len(shown) == 4 else min(COLUMNS_MAX, len(shown))
        lines = math.ceil(len(shown) / columns)
        width = WIDTH if columns > 1 else WIDTH * 0.7
        figure, axes = plt.subplots(lines, columns, figsize=(width, (2.9 if columns == 3 else 3.4) * lines + 0.7),
                                    squeeze=False, layout="constrained")
        flat = list(axes.flat)
        for place, key in zip(flat, shown):
            self.facet(place, key, drawable)
        for place in flat[len(shown):]:
            place.set_visible(False)
        if self.experiment.facets == ("subject",):
            ours = [(place, key) for place, key in zip(flat, shown) if key[0] in self.report.targets]
            tops = [place.get_ylim()[1] for place, _ in ours]
            for place, key in ours:
                if max(tops) <= OWN_AXIS_FROM * min(tops):
                    place.set_ylim(top=max(tops))
                else:
                    place.set_title(f"{self.title(key)}, axis of its own")
        for place in flat:
            # No longer than its plot is wide.
            place.set_title(textwrap.fill(place.get_title() or place.get_title(loc="left"), TITLE_WIDTH[columns]))
        handles = list(self.used.values())
        # So many beside one another as the longest name lets.
        beside = max(1, int(width * 11 / (max(map(len, self.used)) + 8)))
        figure.legend(handles, list(self.used), loc="outside lower center", ncols=min(beside, len(handles)))
        return figure

    def facet(self, place, key, drawable):
        """One of the small plots."""
        chosen = rows_of(drawable, self.experiment.facets, key)
        place.set_title(self.title(key))
        place.set_xlabel(self.experiment.x.label)
        place.set_ylabel(self.experiment.y.label)
        ticks = sorted(self.table.dropna(subset=["x"])["x"].unique())
        if self.experiment.x.log:
            place.set_xscale("log", base=2)
        for curve in keys_of(chosen, self.experiment.curve, self.subjects):
            self.curve(place, curve, rows_of(chosen, self.experiment.curve, curve), ticks)
        place.set_xticks(ticks, [place_text(tick) for tick in ticks],
                         rotation=45 if len(ticks) > 10 else 0, fontsize=8 if len(ticks) > 7 else None)
        place.xaxis.set_minor_formatter(NullFormatter())
        place.minorticks_off()
        if self.experiment.y.log:
            place.set_yscale("log")
        else:
            place.set_ylim(bottom=0, top=place.get_ylim()[1] * 1.05)
        low, high = place.get_ylim()
        if self.experiment.y.log and high / low < 20:
            place.set_ylim(low / 2, high * 2)
        if self.experiment.y.log:
            low, high = place.get_ylim()
            place.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 200 else (1,)))
            place.yaxis.set_minor_formatter(NullFormatter())
        place.yaxis.set_major_formatter(FuncFormatter(number_text))

    def curve(self, place, key, rows, ticks):
        """A curve with its spread; a number for a range of the axis is a line without points."""
        style = self.style(key)
        label = self.label(key)
        points = rows[rows["kind"] != "level"].sort_values("x")
        if not points.empty:
            whole = self.with_gaps(key, points)
            handle, = place.plot(whole["x"], whole["value"], **style)
            spread = points.dropna(subset=["low", "high"])
            spread = spread[spread["high"] > spread["low"]]
            if not spread.empty:
                place.vlines(spread["x"], spread["low"], spread["high"], color=style["color"], linewidth=3, alpha=0.35)
            self.used.setdefault(label, handle)
        for level in rows[rows["kind"] == "level"].itertuples():
            first = ticks[0] if math.isnan(level.first) else level.first
            last = ticks[-1] if math.isnan(level.last) else level.last
            handle, = place.plot([first, last], [level.value] * 2, color=style["color"], linestyle="--", linewidth=1.3)
            # Beside those of the others, for levels are often close to one another.
            shift = 24 * (self.subjects.index(key[0]) - len(self.report.targets)) if key[0] in self.subjects else 0
            place.annotate(f"{level.value:g}", (last, level.value), textcoords="offset points", xytext=(-shift, 3),
                           ha="right", fontsize=8, color=style["color"])
            self.used.setdefault(f"{label} (from the text)", handle)

    def with_gaps(self, key, points):
        """The curve's points with a break where a point is missing."""
        first = points.iloc[0]
        mine = self.table[(self.table["kind"] == first["kind"]) & (self.table["subject"] == first["subject"])
                          & (self.table["series"] == first["series"]) & (self.table["panel"] == first["panel"])]
        return mine.sort_values("x")


def files(report):
    """(SVG for the page, SVG file, PNG file), or None where there is nothing to draw."""
    with plt.rc_context({**STYLE, "svg.hashsalt": report.experiment.id}):
        figure = Plot(report).draw()
        if figure is None:
            return None
        text, picture = io.StringIO(), io.BytesIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
        plain = recolor(text.getvalue(), "#1b1f24", "#57606a")
        figure.savefig(picture, format="png", dpi=144, facecolor="white")
        plt.close(figure)
    inline = recolor(text.getvalue(), "var(--ink)", "var(--faint)")
    inline = inline[inline.index("<svg"):]
    # It takes the width of the page, not that of paper.
    inline = re.sub(r'<svg ([^>]*?)width="([\d.]+)pt"', r'<svg style="max-width:\2pt" \1', inline, count=1)
    inline = re.sub(r'height="[\d.]+pt" ', "", inline, count=1)
    inline = re.sub(r"font-family: [^;\"]*", "font-family: var(--font)", inline)
    # A style of an inline SVG would hold for the whole page.
    inline = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", inline, count=1, flags=re.DOTALL)
    return inline, plain, picture.getvalue()


def recolor(svg, ink, faint):
    return svg.replace(INK, ink).replace(FAINT, faint)
