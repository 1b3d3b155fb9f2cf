//! `cargo xtask ci`: every check and every test, in order, with a table at the end.
//!
//! A stage that fails does not keep the next ones from running: one run tells everything that is wrong. What a stage
//! needs and does not find (a program, /dev/kvm) fails it; nothing is skipped.

mod demo;
mod deny;
mod e2e;
mod output;
mod stages;
mod totals;

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use stages::{STAGES, Stage};
use totals::Totals;

/// What became of a stage.
struct Outcome {
    name: &'static str,
    error: Option<anyhow::Error>,
    totals: Totals,
    took: Duration,
}

/// Runs the stages that the arguments choose.
///
/// Whether all passed is the exit code rather than an error, so that nothing is printed after the totals.
///
/// # Errors
/// When the arguments make no sense.
pub(crate) fn run(root: &Path, arguments: &[String]) -> Result<ExitCode> {
    let chosen = choose(arguments)?;
    println!("This runs, one after the other (times on two cores, the first time with everything to build):");
    for stage in &chosen {
        println!("  {:<10} {:>5}  {}", stage.name, show(Duration::from_secs(stage.typical_s)), stage.about);
    }
    if arguments == ["--list"] {
        return Ok(ExitCode::SUCCESS);
    }
    let expected = Duration::from_secs(chosen.iter().map(|stage| stage.typical_s).sum());
    println!("About {} in all.", show(expected));
    let started = Instant::now();
    let mut outcomes = Vec::new();
    for (index, stage) in chosen.iter().enumerate() {
        println!(
            "\n[{}/{}] {}: {} ({} so far)",
            index + 1,
            chosen.len(),
            stage.name,
            stage.about,
            show(started.elapsed())
        );
        outcomes.push(run_stage(root, stage));
    }
    Ok(if report(&outcomes, started.elapsed()) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn choose(arguments: &[String]) -> Result<Vec<&'static Stage>> {
    if arguments.is_empty() || arguments == ["--list"] {
        return Ok(STAGES.iter().collect());
    }
    let mut chosen = Vec::new();
    for pair in arguments.chunks(2) {
        let [option, name] = pair else { bail!("{} needs a value", pair[0]) };
        if option != "--only" {
            bail!("Unknown option {option}: say --only STAGE, or --list");
        }
        let names = || STAGES.iter().map(|stage| stage.name).collect::<Vec<_>>().join(", ");
        let Some(stage) = STAGES.iter().find(|stage| stage.name == name) else {
            bail!("No stage {name}: there are {}", names())
        };
        chosen.push(stage);
    }
    Ok(chosen)
}

fn run_stage(root: &Path, stage: &Stage) -> Outcome {
    let started = Instant::now();
    let mut totals = Totals::default();
    let error = (stage.run)(root, &mut totals).err();
    totals.close(error.is_some());
    let took = started.elapsed();
    match &error {
        None => println!("{}: ok in {}", stage.name, show(took)),
        Some(error) => println!("{}: FAILED in {}: {error:#}", stage.name, show(took)),
    }
    Outcome { name: stage.name, error, totals, took }
}

/// Prints the table and, last, the totals as one line. Returns whether every stage passed.
fn report(outcomes: &[Outcome], took: Duration) -> bool {
    println!("\n{:<10} {:<7} {:>8} {:>8} {:>8}", "stage", "result", "passed", "failed", "time");
    for Outcome { name, error, totals, took } in outcomes {
        let result = if error.is_none() { "ok" } else { "FAILED" };
        println!("{name:<10} {result:<7} {:>8} {:>8} {:>8}", totals.passed, totals.failed, show(*took));
    }
    for Outcome { name, error, .. } in outcomes {
        if let Some(error) = error {
            println!("{name}: {error:#}");
        }
    }
    println!("Finished in {}.", show(took));
    println!("{}", outcomes.iter().fold(Totals::default(), |sum, outcome| sum.and(outcome.totals)));
    outcomes.iter().all(|outcome| outcome.error.is_none())
}

fn show(time: Duration) -> String {
    match time.as_secs() {
        s if s < 10 => format!("{:.1} s", time.as_secs_f64()),
        s if s < 90 => format!("{s} s"),
        s => format!("{} min", (s + 30) / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(arguments: &[&str]) -> Result<Vec<&'static str>> {
        let arguments: Vec<_> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        Ok(choose(&arguments)?.iter().map(|stage| stage.name).collect())
    }

    #[test]
    fn stages_can_be_chosen() {
        assert_eq!(names(&[]).unwrap().len(), STAGES.len());
        assert_eq!(names(&["--only", "tidy"]).unwrap(), ["tidy"]);
        assert_eq!(names(&["--only", "tidy", "--only", "fmt"]).unwrap(), ["tidy", "fmt"]);
        for bad in [&["--only"][..], &["--only", "nothing"], &["--some", "tidy"], &["tidy"]] {
            assert!(names(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_failed_stage_fails_the_run() {
        let outcome = |error: Option<anyhow::Error>| {
            let mut totals = Totals::default();
            totals.close(error.is_some());
            Outcome { name: "x", error, totals, took: Duration::ZERO }
        };
        assert!(report(&[outcome(None)], Duration::ZERO));
        assert!(!report(&[outcome(None), outcome(Some(anyhow::anyhow!("broken")))], Duration::ZERO));
    }

    #[test]
    fn times_are_short() {
        let shown: Vec<_> = [1_500, 12_000, 89_999, 95_000, 150_000].map(|ms| show(Duration::from_millis(ms))).into();
        assert_eq!(shown, ["1.5 s", "12 s", "89 s", "2 min", "3 min"]);
    }
}
