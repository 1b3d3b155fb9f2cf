//! `cargo xtask bench`: builds the `bench` crate in release mode and runs it.

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
    let status = Command::new(crate::cargo())
        .args(["run", "--release", "--package", "bench", "--"])
        .args(arguments)
        .current_dir(root)
        .status()
        .context("Could not run cargo")?;
    if !status.success() {
        bail!("The benchmark failed: {status}");
    }
    Ok(())
}
