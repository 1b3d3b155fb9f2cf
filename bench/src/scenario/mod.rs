//! The benchmarks. A new one is a module with a `SCENARIO` and a line in [`ALL`].

mod floor;
mod fork;

use anyhow::{Context, Result};

use crate::chart::Chart;
use crate::options::Options;
use crate::report::Report;

/// A benchmark.
pub(crate) struct Scenario {
    /// Its name on the command line and in the report.
    pub(crate) name: &'static str,
    /// What it measures, and how long that takes.
    pub(crate) about: &'static str,
    /// The settings that `--set` may give it.
    pub(crate) settings: &'static [&'static str],
    /// Measures.
    pub(crate) run: fn(&Options) -> Result<Report>,
    /// Draws.
    pub(crate) chart: fn(&Report) -> Chart,
}

const ALL: &[Scenario] = &[floor::SCENARIO, fork::SCENARIO];

/// The benchmark with this name.
///
/// # Errors
/// When there is none.
pub(crate) fn find(name: &str) -> Result<&'static Scenario> {
    let names = || ALL.iter().map(|scenario| scenario.name).collect::<Vec<_>>().join(", ");
    ALL.iter()
        .find(|scenario| scenario.name == name)
        .with_context(|| format!("No benchmark {name}: there are {}", names()))
}

/// All benchmarks, a line each.
pub(crate) fn list() -> String {
    let settings = |scenario: &Scenario| match scenario.settings {
        [] => String::new(),
        settings => format!(" (--set {})", settings.join(", ")),
    };
    ALL.iter().map(|scenario| format!("{:<12} {}{}\n", scenario.name, scenario.about, settings(scenario))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_distinct_and_found() {
        for scenario in ALL {
            assert_eq!(ALL.iter().filter(|other| other.name == scenario.name).count(), 1);
            assert!(find(scenario.name).is_ok());
        }
        assert!(find("nothing").is_err());
        assert!(list().contains("floor"));
    }
}
