//! Charts as SVG: bars for rows, lines for rows that differ in one parameter.
//!
//! A few hundred lines of text per chart, without a script or a style sheet, so that a document can show it as it is.

mod axis;
mod svg;

use crate::report::{Report, Row};
use axis::Axis;
use svg::{Anchor, Svg};

const WIDTH: f64 = 720.0;
const COLOURS: [&str; 6] = ["#2f6fb0", "#c8553d", "#4c956c", "#8e5ea2", "#b58900", "#5f6b73"];
const GREY: &str = "#888888";

/// One line of a chart.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Series {
    /// Its name in the legend.
    pub(crate) name: String,
    /// Its points, x ascending.
    pub(crate) points: Vec<(f64, f64)>,
}

/// A chart.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Chart {
    /// Horizontal bars: a median, with a thin line from the smallest sample to the 99th percentile.
    Bars {
        /// Title.
        title: String,
        /// Label, min, p50, p99, unit of each. Logarithmic when they differ by more than a hundredfold. All are
        /// times, or all have one unit: others share no axis.
        bars: Vec<(String, [f64; 3], String)>,
    },
    /// Lines over a number.
    Lines {
        /// Title.
        title: String,
        /// What x is, with its unit.
        x_label: String,
        /// What y is, with its unit.
        y_label: String,
        /// Whether x and y are logarithmic.
        logarithmic: [bool; 2],
        /// The lines.
        series: Vec<Series>,
    },
    /// Charts below one another.
    Column(Vec<Self>),
}

impl Chart {
    /// Bars for the rows of a report that share an axis with the first.
    pub(crate) fn bars(title: &str, report: &Report) -> Self {
        let label = |row: &Row| {
            let params = row.params.iter().map(|(name, value)| format!(" {name}={value}").replace('"', ""));
            row.name.clone() + &params.collect::<String>()
        };
        let bar = |row: &Row| (label(row), [row.min, row.p50, row.p99], row.unit.clone());
        let first = report.rows.first().map_or("", |row| axis_unit(&row.unit).0);
        let shares = |row: &&Row| axis_unit(&row.unit).0 == first;
        let bars = report.rows.iter().filter(shares).map(bar).collect();
        Self::Bars { title: format!("{title} ({})", report.host.cpu), bars }
    }

    /// The chart as an SVG document.
    pub(crate) fn svg(&self) -> String {
        self.draw().finish()
    }

    fn draw(&self) -> Svg {
        match self {
            Self::Bars { title, bars } => draw_bars(title, bars),
            Self::Lines { title, x_label, y_label, logarithmic, series } => {
                draw_lines(title, [x_label, y_label], *logarithmic, series)
            }
            Self::Column(charts) => {
                let drawn: Vec<Svg> = charts.iter().map(Self::draw).collect();
                let mut sheet = Svg::new(WIDTH, drawn.iter().map(Svg::height).sum());
                let mut y = 0.0;
                for part in drawn {
                    let height = part.height();
                    sheet.place(y, part);
                    y += height;
                }
                sheet
            }
        }
    }
}

/// The unit that a value in `unit` is drawn in, and what it is multiplied by: times share an axis.
fn axis_unit(unit: &str) -> (&str, f64) {
    match unit {
        "ns" => ("us", 1e-3),
        "us" => ("us", 1.0),
        "ms" => ("us", 1e3),
        "s" => ("us", 1e6),
        other => (other, 1.0),
    }
}

fn draw_bars(title: &str, bars: &[(String, [f64; 3], String)]) -> Svg {
    const LEFT: f64 = 240.0;
    const RIGHT: f64 = WIDTH - 110.0;
    const TOP: f64 = 50.0;
    const STEP: f64 = 26.0;
    let bottom = TOP + STEP * bars.len() as f64;
    let scaled = |values: &[f64; 3], unit: &str| values.map(|value| value * axis_unit(unit).1);
    let axis = Axis::over(bars.iter().flat_map(|(_, values, unit)| scaled(values, unit)), None, LEFT..RIGHT);
    let mut svg = Svg::new(WIDTH, bottom + 30.0);
    svg.text(WIDTH / 2.0, 24.0, Anchor::Middle, title);
    let unit = bars.first().map_or("", |(_, _, unit)| axis_unit(unit).0);
    svg.text(LEFT - 8.0, bottom + 18.0, Anchor::End, unit);
    for (value, label) in axis.ticks() {
        let x = axis.place(value);
        svg.line((x, TOP), (x, bottom), "#dddddd", 1.0);
        svg.text(x, bottom + 18.0, Anchor::Middle, &label);
    }
    for (index, (label, values, unit)) in bars.iter().enumerate() {
        let [min, p50, p99] = scaled(values, unit);
        let y = TOP + STEP * (index as f64 + 0.5);
        svg.text(LEFT - 8.0, y + 4.0, Anchor::End, label);
        svg.bar((LEFT, y - 8.0), (axis.place(p50), y + 8.0), COLOURS[0]);
        svg.line((axis.place(min), y), (axis.place(p99), y), "#222222", 1.5);
        svg.text(RIGHT + 8.0, y + 4.0, Anchor::Start, &format!("{} {unit}", crate::table::number(values[1])));
    }
    svg
}

fn draw_lines(title: &str, [x_label, y_label]: [&str; 2], logarithmic: [bool; 2], series: &[Series]) -> Svg {
    const LEFT: f64 = 80.0;
    const RIGHT: f64 = WIDTH - 30.0;
    const TOP: f64 = 60.0;
    const BOTTOM: f64 = 380.0;
    let points = || series.iter().flat_map(|line| line.points.iter().copied());
    let x_axis = Axis::over(points().map(|(x, _)| x), Some(logarithmic[0]), LEFT..RIGHT);
    let y_axis = Axis::over(points().map(|(_, y)| y), Some(logarithmic[1]), BOTTOM..TOP);
    let mut svg = Svg::new(WIDTH, BOTTOM + 60.0 + 20.0 * series.len() as f64);
    svg.text(WIDTH / 2.0, 24.0, Anchor::Middle, title);
    svg.text(LEFT, TOP - 12.0, Anchor::Start, y_label);
    svg.text(RIGHT, BOTTOM + 40.0, Anchor::End, x_label);
    for (value, label) in x_axis.ticks() {
        let x = x_axis.place(value);
        svg.line((x, TOP), (x, BOTTOM), "#dddddd", 1.0);
        svg.text(x, BOTTOM + 18.0, Anchor::Middle, &label);
    }
    for (value, label) in y_axis.ticks() {
        let y = y_axis.place(value);
        svg.line((LEFT, y), (RIGHT, y), "#dddddd", 1.0);
        svg.text(LEFT - 8.0, y + 4.0, Anchor::End, &label);
    }
    svg.line((LEFT, BOTTOM), (RIGHT, BOTTOM), GREY, 1.0);
    for (index, line) in series.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let placed: Vec<_> = line.points.iter().map(|(x, y)| (x_axis.place(*x), y_axis.place(*y))).collect();
        svg.polyline(&placed, colour);
        placed.iter().for_each(|point| svg.dot(*point, colour));
        let y = BOTTOM + 60.0 + 20.0 * index as f64;
        svg.line((LEFT, y - 4.0), (LEFT + 24.0, y - 4.0), colour, 2.0);
        svg.text(LEFT + 32.0, y, Anchor::Start, &line.name);
    }
    svg
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::params;

    fn well_formed(svg: &str) {
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"), "{svg}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        assert_eq!(svg.matches("<text ").count(), svg.matches("</text>").count());
    }

    #[test]
    fn bars_are_drawn_for_every_row() {
        let row = |name: &str, p50: f64| Row {
            name: name.to_owned(),
            params: params([("backing", "a<b".into())]),
            n: 1,
            min: p50,
            p50,
            p99: p50 * 2.0,
            unit: "us".to_owned(),
        };
        let other = Row { unit: "KiB".to_owned(), ..row("memory", 3.0) };
        let slow = Row { unit: "ms".to_owned(), ..row("slow", 5.0) };
        let svg = Chart::bars("Title", &Report::new("x", vec![row("one", 1.0), row("two", 5000.0), slow, other])).svg();
        well_formed(&svg);
        assert_eq!(svg.matches("<rect ").count(), 1 + 3);
        assert_eq!(svg.matches(" width=\"342.2\"").count(), 2, "5000 us and 5 ms are as long: {svg}");
        assert!(svg.contains("one backing=a&lt;b") && svg.contains("5000 us"), "{svg}");
        well_formed(&Chart::bars("Empty", &Report::new("x", vec![])).svg());
    }

    #[test]
    fn lines_are_drawn_for_every_series() {
        for logarithmic in [[false, false], [true, true]] {
            let series = |name: &str, slope: f64| Series {
                name: name.to_owned(),
                points: [16.0, 128.0, 4096.0].map(|x| (x, x * slope)).to_vec(),
            };
            let svg = draw_lines("Title", ["MiB", "ms"], logarithmic, &[series("a", 0.1), series("b", 2.0)]).finish();
            well_formed(&svg);
            assert_eq!((svg.matches("<polyline ").count(), svg.matches("<circle ").count()), (2, 6));
        }
        let point = Series { name: "a".to_owned(), points: vec![(0.0, 0.0)] };
        well_formed(&draw_lines("One point", ["x", "y"], [true, true], &[point]).finish());
    }

    #[test]
    fn a_column_is_as_high_as_its_charts() {
        let bars = Chart::bars("Title", &Report::new("x", vec![]));
        let svg = Chart::Column(vec![bars.clone(), bars.clone()]).svg();
        well_formed(&svg);
        assert_eq!(svg.matches("<svg ").count(), 3);
        assert_eq!(svg.matches("</svg>").count(), 3);
        assert!(svg.contains(&format!("y=\"{}\"", bars.draw().height())), "{svg}");
    }
}
