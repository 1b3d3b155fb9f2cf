//! `cargo xtask bench`: builds the `bench` crate and the command that it measures in release mode, and runs it.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Runs `bench` with the given arguments.
///
/// # Errors
/// When it cannot be built, or fails.
pub(crate) fn run(root: &Path, arguments: &[String]) -> Result<()> {
    if arguments.is_empty() {
        bail!("Say what to measure: `cargo xtask bench --list` shows what there is");
    }
    eprintln!("Building in release mode (a few minutes the first time)...");
    let cargo = |arguments: &[&str], more: &[String]| {
        let mut command = Command::new(crate::cargo());
        command.args(arguments).args(more).current_dir(root).status().context("Could not run cargo")
    };
    let built = cargo(&["build", "--release", "--package", "ramet"], &[])?;
    if !built.success() {
        bail!("The command cannot be built: {built}");
    }
    let status = cargo(&["run", "--release", "--package", "bench", "--"], arguments)?;
    if !status.success() {
        bail!("The benchmark failed: {status}");
    }
    Ok(())
}
