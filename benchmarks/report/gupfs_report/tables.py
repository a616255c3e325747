"""The tables of a page: the document's rows and columns, its numbers and ours, gaps with their reasons."""

import html
import math

from gupfs_report.plots import keys_of


def number(value):
    """With as many digits as a benchmark has."""
    if value is None or math.isnan(value):
        return ""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def plain(value):
    """A place on an axis."""
    return f"{value:,.0f}" if value == int(value) else f"{value:g}"


class Reasons:
    """Why cells are empty: each reason once, with a letter."""

    def __init__(self):
        self.letters = {}

    def mark(self, reason):
        count = len(self.letters)
        letter = self.letters.setdefault(reason, chr(ord("a") + count % 26) * (count // 26 + 1))
        return f'<sup class="why" title="{html.escape(reason)}">{letter}</sup>'

    def legend(self):
        if not self.letters:
            return ""
        items = "".join(f"<li><b>{letter}</b> {html.escape(reason)}</li>" for reason, letter in self.letters.items())
        return f'<ul class="reasons">{items}</ul>'


class Tables:
    """All tables of a report, as HTML."""

    def __init__(self, report):
        self.report, self.experiment = report, report.experiment
        self.table = report.table[report.table["kind"] != "level"]
        self.subjects = report.subjects()
        self.reasons = Reasons()
        self.digits = self.decimals()

    def html(self):
        dimensions = (*self.experiment.lines, *self.experiment.columns)
        # Something that every cell has in common is left out.
        if "panel" in dimensions:
            parts = [self.one(self.table, "")]
        else:
            parts = [self.one(self.table[self.table["panel"] == panel], panel) for panel in self.table["panel"].unique()]
        return "".join(parts) + self.reasons.legend()

    def decimals(self):
        """Of the document's numbers, as it writes them."""
        values = self.table[self.table["kind"] == "document"]["value"]
        return 0 if all(value == int(value) for value in values) else max(len(f"{value:g}".partition(".")[2]) for value in values)

    def keys(self, table, dimensions):
        """Lines or columns in order: of numbers by size, of names as they appear."""
        keys = keys_of(table, dimensions, self.subjects)
        order = {}
        for at, dimension in enumerate(dimensions):
            values = list(dict.fromkeys(key[at] for key in keys))
            if dimension == "x":
                values.sort()
            if dimension == "subject":
                values.sort(key=self.subjects.index)
            order[at] = values
        return sorted(keys, key=lambda key: [order[at].index(part) for at, part in enumerate(key)])

    def one(self, table, panel):
        """A table with its head."""
        lines, columns = self.experiment.lines, self.experiment.columns
        line_keys, column_keys = self.keys(table, lines), self.keys(table, columns)
        cells = {}
        for row in table.itertuples():
            cells[tuple(getattr(row, name) for name in (*lines, *columns))] = row
        title = self.experiment.names.get(panel, panel)
        caption = f"<caption>{html.escape(title)}</caption>" if title else ""
        body = []
        for index, key in enumerate(line_keys):
            heads = self.heads(line_keys, index, lines, "row")
            values = "".join(self.cell(cells, key, column) for column in column_keys)
            begins = index == 0 or key[0] != line_keys[index - 1][0]
            body.append(f'<tr{" class=begins" if begins and len(lines) > 1 else ""}>{heads}{values}</tr>')
        head = []
        if columns in (("x",), ("series",)):
            head.append(f'<tr><th colspan="{len(lines)}"></th><th scope="colgroup" colspan="{len(column_keys)}">'
                        f"{html.escape(self.corner(columns[0]))}</th></tr>")
        for level in range(len(columns)):
            last = level == len(columns) - 1
            corners = "".join(f'<th class="corner">{html.escape(self.corner(name) if last else "")}</th>' for name in lines)
            head.append(f"<tr>{corners}{self.spans(column_keys, level, columns)}</tr>")
        return (f'<div class="scroll"><table>{caption}<thead>{"".join(head)}</thead>'
                f'<tbody>{"".join(body)}</tbody></table></div>')

    def corner(self, dimension):
        """What lines or columns are."""
        return {"x": self.experiment.x.label, "series": self.experiment.series}.get(dimension, "")

    def text(self, dimension, value):
        if dimension == "x":
            return plain(value)
        return str(self.experiment.names.get(value, value))

    def style(self, dimension, value):
        if dimension != "subject":
            return ""
        return "ours" if value in self.report.targets else "theirs"

    def heads(self, keys, index, dimensions, scope):
        """The heads of a line; one that is that of the lines above spans them."""
        found = []
        for at, name in enumerate(dimensions):
            prefix = keys[index][:at + 1]
            last = at == len(dimensions) - 1
            if not last and index > 0 and keys[index - 1][:at + 1] == prefix:
                continue
            span = 1
            while not last and index + span < len(keys) and keys[index + span][:at + 1] == prefix:
                span += 1
            rows = f' rowspan="{span}"' if span > 1 else ""
            kind = self.style(name, keys[index][at])
            found.append(f'<th scope="{scope}"{rows} class="{kind}">{html.escape(self.text(name, keys[index][at]))}</th>')
        return "".join(found)

    def spans(self, keys, level, dimensions):
        """A line of the head: what columns beside one another share is written once."""
        found, index = [], 0
        while index < len(keys):
            prefix, span = keys[index][:level + 1], 1
            while level < len(dimensions) - 1 and index + span < len(keys) and keys[index + span][:level + 1] == prefix:
                span += 1
            kind = self.style(dimensions[level], keys[index][level])
            columns = f' colspan="{span}"' if span > 1 else ""
            found.append(f'<th scope="col"{columns} class="{kind}">{html.escape(self.text(dimensions[level], keys[index][level]))}</th>')
            index += span
        return "".join(found)

    def cell(self, cells, line, column):
        row = cells.get((*line, *column))
        if row is None:
            return '<td class="none"></td>'
        if math.isnan(row.value):
            return f'<td class="gap">&ndash;{self.reasons.mark(row.gap)}</td>'
        if row.kind == "document":
            return f'<td class="theirs">{row.value:,.{self.digits}f}</td>'
        spread = ""
        if row.runs > 1:
            spread = f'<small>{number(row.low)}&ndash;{number(row.high)}</small>'
        mark = self.reasons.mark(row.gap) if row.gap else ""
        best = " best" if self.is_best(row) else ""
        return f'<td class="ours{best}">{number(row.value)}{mark}{spread}</td>'

    def is_best(self, row):
        """Whether every run of this target was faster than every run of the others; one run says nothing."""
        if row.runs < 2:
            return False
        same = self.table[(self.table["kind"] == "measured") & (self.table["panel"] == row.panel)
                          & (self.table["series"] == row.series) & (self.table["x"] == row.x)
                          & (self.table["subject"] != row.subject)].dropna(subset=["value"])
        return len(same) > 0 and bool((same["high"] < row.low).all())
