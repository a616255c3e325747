//! Rows of the table: a figure, its comparator, the ratio, and whether it is what it must be.

use serde_json::{Value, json};

/// Which side of the bound is good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Good {
    /// Times, counts: at most the bound.
    Low,
    /// Rates: at least the bound.
    High,
}

/// A figure and what it is compared with.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Row {
    /// What was measured.
    pub(crate) name: String,
    /// The measured figure.
    pub(crate) value: f64,
    /// Its unit.
    pub(crate) unit: &'static str,
    /// Name and figure of the comparator.
    pub(crate) against: Option<(&'static str, f64)>,
    /// What is judged: mostly value / comparator.
    pub(crate) judged: f64,
    /// First and third quartile of what is judged, where there were turns.
    pub(crate) spread: Option<(f64, f64)>,
    /// Which side is good.
    pub(crate) good: Good,
    /// The bound that must be kept.
    pub(crate) must: Option<f64>,
    /// The bound that is aimed at.
    pub(crate) aim: Option<f64>,
    /// Why there is no figure, or something that a reader has to know.
    pub(crate) note: String,
}

impl Row {
    /// `value` divided by the comparator's figure is judged.
    pub(crate) fn ratio(
        name: impl Into<String>,
        unit: &'static str,
        value: f64,
        against: (&'static str, f64),
    ) -> Self {
        let good = if unit == "MB/s" || unit == "1/s" {
            Good::High
        } else {
            Good::Low
        };
        Self {
            name: name.into(),
            value,
            unit,
            against: Some(against),
            judged: value / against.1,
            spread: None,
            good,
            must: None,
            aim: None,
            note: String::new(),
        }
    }

    /// What `turns` say of subject and comparator: the median of their ratios is judged.
    pub(crate) fn turns(
        name: impl Into<String>,
        unit: &'static str,
        turns: &Turns,
        against: &'static str,
    ) -> Self {
        let ratio = turns.ratio();
        Self {
            judged: ratio.median,
            spread: Some((ratio.first, ratio.third)),
            ..Self::ratio(name, unit, turns.ours(), (against, turns.theirs()))
        }
    }

    /// `value` itself is judged; low is good.
    pub(crate) fn plain(name: impl Into<String>, unit: &'static str, value: f64) -> Self {
        Self {
            name: name.into(),
            value,
            unit,
            against: None,
            judged: value,
            spread: None,
            good: Good::Low,
            must: None,
            aim: None,
            note: String::new(),
        }
    }

    /// A group that could not be measured.
    pub(crate) fn failed(name: &str, error: &anyhow::Error) -> Self {
        const REASON_MAX: usize = 400;
        let reason: String = format!("not measured: {error:#}")
            .chars()
            .take(REASON_MAX)
            .map(|c| if c == '\n' { ' ' } else { c })
            .collect();
        Self {
            note: reason,
            ..Self::plain(name, "", f64::NAN)
        }
    }

    /// With its bounds.
    pub(crate) fn bounds(self, must: f64, aim: f64) -> Self {
        Self {
            must: Some(must),
            aim: Some(aim),
            ..self
        }
    }

    /// With a remark.
    pub(crate) fn note(self, note: impl Into<String>) -> Self {
        Self {
            note: note.into(),
            ..self
        }
    }

    /// Whether there is no figure.
    pub(crate) fn is_failed(&self) -> bool {
        self.value.is_nan()
    }

    fn keeps(&self, bound: f64) -> bool {
        match self.good {
            Good::Low => self.judged <= bound,
            Good::High => self.judged >= bound,
        }
    }

    /// PASS, AIM (better than must), MISS, or nothing where nothing is demanded.
    pub(crate) fn verdict(&self) -> &'static str {
        match (self.is_failed(), self.must, self.aim) {
            (true, _, _) => "FAILED",
            (_, _, Some(aim)) if self.keeps(aim) => "AIM",
            (_, Some(must), _) if self.keeps(must) => "PASS",
            (_, Some(_), _) => "MISS",
            (_, None, _) => "",
        }
    }
}

/// The rows as aligned columns.
pub(crate) fn table(rows: &[Row]) -> String {
    let mut cells = vec![
        [
            "WHAT",
            "FIGURE",
            "AGAINST",
            "RATIO",
            "QUARTILES",
            "MUST",
            "AIM",
            "",
            "",
        ]
        .map(str::to_owned),
    ];
    for row in rows {
        let number = |n: Option<f64>| n.map(|n| format!("{n:.2}")).unwrap_or_default();
        cells.push([
            row.name.clone(),
            if row.is_failed() {
                "-".to_owned()
            } else {
                format!("{:.2} {}", row.value, row.unit)
            },
            row.against
                .map(|(name, figure)| format!("{name} {figure:.2}"))
                .unwrap_or_default(),
            row.against
                .map(|_| format!("{:.2}", row.judged))
                .unwrap_or_default(),
            row.spread
                .map(|(first, third)| format!("{first:.2}-{third:.2}"))
                .unwrap_or_default(),
            number(row.must),
            number(row.aim),
            row.verdict().to_owned(),
            row.note.clone(),
        ]);
    }
    let width = |column: usize| cells.iter().map(|c| c[column].len()).max().unwrap_or(0);
    // Nothing stands right of the notes: they are as long as they are.
    let widths: Vec<usize> = (0..9)
        .map(|column| if column == 8 { 0 } else { width(column) })
        .collect();
    let line = |row: &[String; 9]| {
        let padded: Vec<String> = row
            .iter()
            .zip(&widths)
            .map(|(cell, w)| format!("{cell:w$}"))
            .collect();
        padded.join("  ").trim_end().to_owned()
    };
    cells.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// The rows as JSON.
pub(crate) fn to_json(rows: &[Row]) -> Value {
    let row = |row: &Row| {
        json!({
            "name": row.name, "value": row.value, "unit": row.unit,
            "against": row.against.map(|a| a.0), "against_value": row.against.map(|a| a.1),
            "judged": row.judged, "quartiles": row.spread.map(|(first, third)| [first, third]),
            "must": row.must, "aim": row.aim,
            "verdict": row.verdict(), "note": row.note,
        })
    };
    Value::Array(rows.iter().map(row).collect())
}

/// Figures of subject and comparator, measured in turn: subject, comparator, subject, comparator, ...
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Turns {
    ours: Vec<f64>,
    theirs: Vec<f64>,
}

/// The middle of a distribution.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Quartiles {
    /// A quarter is below.
    pub(crate) first: f64,
    /// Half is below.
    pub(crate) median: f64,
    /// A quarter is above.
    pub(crate) third: f64,
}

impl Turns {
    /// One more turn of both.
    pub(crate) fn push(&mut self, ours: f64, theirs: f64) {
        self.ours.push(ours);
        self.theirs.push(theirs);
    }

    /// Median of the subject.
    pub(crate) fn ours(&self) -> f64 {
        median(&mut self.ours.clone())
    }

    /// Median of the comparator.
    pub(crate) fn theirs(&self) -> f64 {
        median(&mut self.theirs.clone())
    }

    /// The ratios of adjacent turns. What slows the machine down for longer than a turn strikes both sides
    /// of most ratios; the ratio of the medians would compare figures of different minutes.
    pub(crate) fn ratio(&self) -> Quartiles {
        assert!(!self.ours.is_empty(), "at least one turn");
        let same = self.ours.iter().zip(&self.theirs);
        let next = self.ours.iter().skip(1).zip(&self.theirs);
        let mut ratios: Vec<f64> = same.chain(next).map(|(o, t)| o / t).collect();
        ratios.sort_by(f64::total_cmp);
        let at = |quarter: usize| ratios[(ratios.len() - 1) * quarter / 4];
        Quartiles {
            first: at(1),
            median: median(&mut ratios.clone()),
            third: at(3),
        }
    }
}

/// The middle one of `figures`.
pub(crate) fn median(figures: &mut [f64]) -> f64 {
    assert!(!figures.is_empty(), "at least one run");
    figures.sort_by(f64::total_cmp);
    let middle = figures.len() / 2;
    if figures.len() % 2 == 1 {
        return figures[middle];
    }
    f64::midpoint(figures[middle - 1], figures[middle])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_must_be_low_and_rates_high() {
        let time = |value| {
            Row::ratio("x", "us", value, ("T", 10.0))
                .bounds(1.25, 1.1)
                .verdict()
        };
        assert_eq!(
            [time(10.9), time(12.0), time(13.0)],
            ["AIM", "PASS", "MISS"]
        );
        let rate = |value| {
            Row::ratio("x", "MB/s", value, ("X", 10.0))
                .bounds(0.9, 1.2)
                .verdict()
        };
        assert_eq!([rate(12.5), rate(9.5), rate(8.0)], ["AIM", "PASS", "MISS"]);
        assert_eq!(Row::plain("x", "us", 3.0).verdict(), "");
        assert_eq!(
            Row::failed("x", &anyhow::anyhow!("why"))
                .bounds(1.0, 1.0)
                .verdict(),
            "FAILED"
        );
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert!((median(&mut [3.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
        assert!((median(&mut [4.0, 1.0]) - 2.5).abs() < 1e-9);
    }

    #[test]
    fn ratios_are_of_adjacent_turns() {
        let mut turns = Turns::default();
        // The machine becomes ten times slower half way; the subject takes twice the comparator's time.
        for speed in [1.0, 1.0, 1.0, 10.0, 10.0] {
            turns.push(2.0 * speed, speed);
        }
        let ratio = turns.ratio();
        assert!((ratio.median - 2.0).abs() < 1e-9, "{ratio:?}");
        assert!((ratio.third - 2.0).abs() < 1e-9, "{ratio:?}");
        assert!((turns.ours() - 2.0).abs() < 1e-9 && (turns.theirs() - 1.0).abs() < 1e-9);
        let row = Row::turns("create", "us", &turns, "T").bounds(1.25, 1.1);
        assert_eq!(row.verdict(), "MISS");
        assert!(table(&[row]).contains("T 1.00   2.00   2.00-2.00"));
    }

    #[test]
    fn the_table_shows_bounds_and_reasons() {
        let rows = [
            Row::ratio("create", "us", 20.0, ("T", 16.0)).bounds(1.25, 1.1),
            Row::failed("remote", &anyhow::anyhow!("no iperf3")),
        ];
        let text = table(&rows);
        assert!(
            text.contains("create  20.00 us  T 16.00  1.25              1.25  1.10  PASS"),
            "{text}"
        );
        assert!(text.contains("not measured: no iperf3"), "{text}");
        assert_eq!(to_json(&rows)[0]["verdict"], "PASS");
    }
}
