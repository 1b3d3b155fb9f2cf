//! `cargo deny`: licences, sources and duplicates of what the project is built from.
//!
//! The database of advisories is deliberately not asked: it is a git repository that cargo-deny fetches, and the
//! checks must also pass where only package registries are reached.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::output;

/// The version that is installed where another or none is found.
const VERSION: &str = "0.20.2";

/// Runs the checks for each workspace.
pub(super) fn run(root: &Path) -> Result<()> {
    let program = install(root)?;
    for folder in super::stages::workspaces(root) {
        let mut command = Command::new(&program);
        command.arg("--config").arg(root.join("deny.toml")).args(["--workspace", "--locked", "check"]);
        command.args(["--hide-inclusion-graph", "bans", "licenses", "sources"]).current_dir(&folder);
        output::run(&mut command, |_| {}).with_context(|| format!("In {}", folder.display()))?;
    }
    Ok(())
}

/// The program, built into target/tools where it is not there yet. Without optimisation: it then takes a minute rather
/// than many to build, and runs for a second either way.
fn install(root: &Path) -> Result<PathBuf> {
    let tools = root.join("target/tools");
    let program = tools.join("bin/cargo-deny");
    let version = Command::new(&program).arg("--version").output();
    if version.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).trim() == format!("cargo-deny {VERSION}")) {
        return Ok(program);
    }
    println!("Building cargo-deny {VERSION} (once; a minute on two cores)...");
    let build = tools.join("build");
    let status = Command::new(crate::cargo())
        .args(["install", "--quiet", "--locked", "--debug", "--force", "--version", VERSION, "--root"])
        .arg(&tools)
        .arg("--target-dir")
        .arg(&build)
        .arg("cargo-deny")
        .envs([("CARGO_PROFILE_DEV_DEBUG", "0"), ("CARGO_PROFILE_DEV_OPT_LEVEL", "0"), ("CARGO_INCREMENTAL", "0")])
        .current_dir(root)
        .status()
        .context("Could not run cargo install")?;
    ensure!(status.success(), "Could not install cargo-deny {VERSION}: {status}");
    std::fs::remove_dir_all(&build).with_context(|| format!("Could not remove {}", build.display()))?;
    Ok(program)
}
