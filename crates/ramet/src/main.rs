//! The `ramet` command.
//!
//! `demo`, `run` and `doctor` are for people; `zygote` is what the command starts itself as, to bear machines.
#![forbid(unsafe_code)]

mod arguments;
mod demo;
mod doctor;
mod run;
mod size;
mod table;

use arguments::{Arguments, Command};
use clap::Parser;
use std::process::ExitCode;

/// Exit status for failures of Ramet itself, as env(1), timeout(1) and docker(1) use it.
const FAILURE: u8 = 125;

fn main() -> ExitCode {
    // The zygote is started a moment before every machine: nothing else happens before it takes over.
    if std::env::args_os().nth(1).is_some_and(|argument| argument == ramet_family::ZYGOTE_ARGUMENT) {
        return ramet_family::zygote_main();
    }
    let arguments = Arguments::parse();
    let filter = tracing_subscriber::EnvFilter::try_from_env("RAMET_LOG");
    tracing_subscriber::fmt()
        .with_env_filter(filter.unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn")))
        .with_writer(std::io::stderr)
        .init();
    let outcome = match arguments.command {
        Command::Demo(options) => demo::run(&options),
        Command::Doctor(options) => doctor::run(&options),
        Command::Run(options) => run::run(&options),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("ramet: {error:#}");
        ExitCode::from(FAILURE)
    })
}
