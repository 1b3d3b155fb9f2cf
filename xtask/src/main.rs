//! The project's own chores: `cargo xtask tidy`, `bench`, `ci`, `hosts`.
//!
//! A program rather than shell scripts, so that the rules and the stages have tests. Nothing here is part of what
//! users run.
#![forbid(unsafe_code)]

mod bench;
mod ci;
mod tidy;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

const USAGE: &str = "\
usage: cargo xtask COMMAND

  tidy                        check the project's style (a second)
  ci [--only STAGE] [--list]  run every check and every test, or one stage of them
  bench --list                what can be measured
  bench NAME [--json FILE] [--svg FILE] [ARGUMENTS]
                              measure it, in a release build
  hosts                       render docs/hosts.md from docs/hosts.toml
";

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some((command, rest)) = arguments.split_first() else { bail!("No command given\n{USAGE}") };
    match command.as_str() {
        "tidy" => tidy::run(&root()?)?,
        "ci" => return ci::run(&root()?, rest),
        "bench" => bench::run(&root()?, rest)?,
        "hosts" => render_hosts(&root()?)?,
        "help" | "--help" | "-h" => print!("{USAGE}"),
        other => bail!("Unknown command {other}\n{USAGE}"),
    }
    Ok(ExitCode::SUCCESS)
}

fn render_hosts(root: &std::path::Path) -> Result<()> {
    let (source, table) = (root.join("docs/hosts.toml"), root.join("docs/hosts.md"));
    let read = |path: &PathBuf| std::fs::read_to_string(path).with_context(|| format!("Could not read {path:?}"));
    let rendered = tidy::render_hosts(&read(&table)?, &read(&source)?).map_err(anyhow::Error::msg)?;
    std::fs::write(&table, rendered).with_context(|| format!("Could not write {table:?}"))
}

/// The root of the repository: the nearest folder above the current one that has the workspace's manifest.
fn root() -> Result<PathBuf> {
    let start = std::env::current_dir().context("Could not find the current folder")?;
    let is_root = |folder: &&std::path::Path| folder.join("xtask/Cargo.toml").is_file();
    let root = start.ancestors().find(is_root).map(std::path::Path::to_path_buf);
    root.with_context(|| format!("{} is not inside the repository", start.display()))
}

/// The cargo that runs this program.
fn cargo() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}
