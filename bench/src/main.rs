//! What Ramet and its host cost, measured: `cargo xtask bench NAME --json FILE`.
//!
//! A benchmark is a module of [`scenario`] with a function that returns a [`report::Report`]. What is compared is
//! measured interleaved ([`interleave`]), because a host's other load changes from minute to minute. Judging the
//! numbers (limits, trends) is deliberately absent: a report says what was measured, and where.
#![forbid(unsafe_code)]

mod chart;
mod host;
mod interleave;
mod options;
mod report;
mod scenario;
mod shuffle;
mod statistics;
mod table;
mod ticks;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;

use options::Arguments;

fn main() -> ExitCode {
    // Machines are made from this program, as they are from the command.
    if std::env::args_os().nth(1).is_some_and(|argument| argument == ramet_family::ZYGOTE_ARGUMENT) {
        return ramet_family::zygote_main();
    }
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    let Some(name) = &arguments.name else {
        print!("{}", scenario::list());
        return Ok(());
    };
    let scenario = scenario::find(name)?;
    let options = arguments.options(scenario.settings)?;
    eprintln!("{name}: {}", scenario.about);
    let load_before = host::load();
    let mut report = (scenario.run)(&options)?;
    report.host.load_before = load_before;
    print!("{}", table::render(&report, table::width()));
    if let Some(path) = &arguments.json {
        let json = serde_json::to_string_pretty(&report).context("Could not write the report as JSON")?;
        write(path, &(json + "\n"))?;
    }
    if let Some(path) = &arguments.svg {
        write(path, &(scenario.chart)(&report).svg())?;
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("Could not write {}", path.display()))?;
    eprintln!("Written: {}", path.display());
    Ok(())
}
