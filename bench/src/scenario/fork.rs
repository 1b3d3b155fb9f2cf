//! Live forks: how soon a child runs and answers, how long its parent is stopped, and what many clones cost.
//!
//! ```text
//!   interleaved   forks over slots, vCPUs and resident memory; pauses over written pages; boots and forks from
//!                 process start to console; a process and an empty VM beside them
//!   in a row      the pause of the first ... hundredth fork of one parent
//!   alive         a thousand clones at once, each verified
//! ```
//!
//! Every child is made from scratch: there is no pool of blank machines here. docs/benchmarks/fork.md defines the rows.

mod alive;
mod boundaries;
mod machine;
mod pause;
mod settings;
mod single;

use anyhow::Result;

use super::Scenario;
use crate::chart::{Chart, Series};
use crate::interleave::Interleave;
use crate::options::Options;
use crate::report::{Report, Row};
use crate::ticks::Ticks;
use settings::Settings;

/// The benchmark.
pub(super) const SCENARIO: Scenario = Scenario {
    name: "fork",
    about: "live forks: first instruction, pause, console, a thousand clones (one to two minutes)",
    settings: settings::NAMES,
    run,
    chart,
};

/// Slot and vCPUs whose stages are drawn.
const DRAWN: [(&str, u64); 2] = [("slot_mib", 128), ("vcpus", 1)];

fn run(options: &Options) -> Result<Report> {
    let ticks = Ticks::new();
    let settings = Settings::of(options)?;
    let backing = machine::backing()?;
    let kernel = boundaries::KernelFile::new()?;
    let mut interleave = Interleave::new();
    eprintln!("  booting the parents");
    single::add(&mut interleave, &settings, ticks)?;
    pause::add(&mut interleave, &settings, ticks)?;
    boundaries::add(&mut interleave, &settings, &kernel, ticks)?;
    let mut rows = interleave.run(options.samples(100), options.seed)?;
    rows.extend(single::resident_ratio(&rows));
    rows.extend(pause::in_a_row(&settings, ticks)?);
    rows.extend(alive::rows(&settings, ticks)?);
    let guest = Some(format!("the embedded unikernel, split interrupt controller, layers on {backing}"));
    Ok(Report { guest, ..Report::new(SCENARIO.name, by_name(rows)) })
}

/// The rows of one name together, in the order in which the names first came.
fn by_name(rows: Vec<Row>) -> Vec<Row> {
    let mut names: Vec<String> = Vec::new();
    for row in &rows {
        if !names.contains(&row.name) {
            names.push(row.name.clone());
        }
    }
    let mut rows = rows;
    rows.sort_by_key(|row| names.iter().position(|name| *name == row.name));
    rows
}

fn number(row: &Row, name: &str) -> Option<u64> {
    row.params.get(name)?.as_u64()
}

/// The time to the first instruction over the slot's size, and the stages that it consists of.
fn chart(report: &Report) -> Chart {
    let plain = |row: &&Row| !row.params.contains_key("resident_mib") && !row.params.contains_key("dirty_pages");
    let firsts: Vec<&Row> =
        report.rows.iter().filter(|row| row.name == "fork_first_instruction").filter(plain).collect();
    let mut vcpus: Vec<u64> = firsts.iter().filter_map(|row| number(row, "vcpus")).collect();
    vcpus.dedup();
    vcpus.sort_unstable();
    vcpus.dedup();
    let series = |vcpus: u64, what: &str, value: &dyn Fn(&Row) -> f64| {
        let fits = firsts.iter().filter(|row| number(row, "vcpus") == Some(vcpus));
        let mut points: Vec<_> = fits.filter_map(|row| Some((number(row, "slot_mib")? as f64, value(row)))).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Series { name: format!("{vcpus} vCPU: {what}"), points }
    };
    let pair =
        |&vcpus: &u64| [series(vcpus, "p50", &|row| row.p50 / 1e3), series(vcpus, "fastest", &|row| row.min / 1e3)];
    let lines = Chart::Lines {
        title: format!("Fork request to the child's first instruction ({})", report.host.cpu),
        x_label: "memory slot, MiB".to_owned(),
        y_label: "ms".to_owned(),
        logarithmic: [true, false],
        series: vcpus.iter().flat_map(pair).collect(),
    };
    Chart::Column(vec![lines, stages_chart(report)])
}

fn stages_chart(report: &Report) -> Chart {
    let drawn = |row: &&Row| DRAWN.iter().all(|(name, value)| number(row, name) == Some(*value));
    let plain = |row: &&Row| !row.params.contains_key("dirty_pages");
    let named = |row: &&Row| {
        row.name.starts_with("stage_") || matches!(row.name.as_str(), "fork_first_instruction" | "fork_first_answer")
    };
    let mut rows: Vec<&Row> = report.rows.iter().filter(named).filter(drawn).filter(plain).collect();
    rows.sort_by(|a, b| a.p50.total_cmp(&b.p50));
    let bar = |row: &&Row| {
        let label = row.name.trim_start_matches("stage_").trim_start_matches("fork_").replace('_', " ");
        (label, [row.min, row.p50, row.p99], row.unit.clone())
    };
    Chart::Bars {
        title: "Stages of a fork since the request (128 MiB, 1 vCPU): p50, line from min to p99".to_owned(),
        bars: rows.iter().map(bar).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::params;

    fn row(name: &str, slot: u64, vcpus: u64, p50: f64) -> Row {
        let names = params([("slot_mib", slot.into()), ("vcpus", vcpus.into())]);
        Row::of(name, names, vec![p50], "us").unwrap()
    }

    #[test]
    fn rows_are_grouped_by_name() {
        let rows = vec![row("b", 1, 1, 1.0), row("a", 1, 1, 2.0), row("b", 2, 1, 3.0)];
        let names: Vec<_> = by_name(rows).into_iter().map(|row| (row.name, row.p50)).collect();
        assert_eq!(names, [("b".to_owned(), 1.0), ("b".to_owned(), 3.0), ("a".to_owned(), 2.0)]);
    }

    #[test]
    fn the_chart_has_a_line_for_each_number_of_vcpus_and_a_bar_for_each_stage() {
        let mut rows = vec![row("stage_born", 128, 1, 100.0), row("stage_mapped", 128, 1, 700.0)];
        rows.push(row("stage_born", 16, 1, 90.0));
        for vcpus in [1, 2] {
            for slot in [16, 128] {
                rows.push(row("fork_first_instruction", slot, vcpus, 900.0));
            }
        }
        let Chart::Column(charts) = chart(&Report::new("fork", rows)) else { panic!("not a column") };
        let [Chart::Lines { series, .. }, Chart::Bars { bars, .. }] = charts.as_slice() else { panic!("{charts:?}") };
        let names: Vec<_> = series.iter().map(|line| (line.name.as_str(), line.points.len())).collect();
        assert_eq!(names, [("1 vCPU: p50", 2), ("1 vCPU: fastest", 2), ("2 vCPU: p50", 2), ("2 vCPU: fastest", 2)]);
        let labels: Vec<_> = bars.iter().map(|(label, ..)| label.as_str()).collect();
        assert_eq!(labels, ["born", "mapped", "first instruction"]);
    }
}
