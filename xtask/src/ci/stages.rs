//! The table of stages, and those that only run cargo.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::totals::Totals;
use super::{deny, e2e, output};

/// One stage.
pub(super) struct Stage {
    /// Its name for `--only`.
    pub(super) name: &'static str,
    /// What it does.
    pub(super) about: &'static str,
    /// How long it takes on two cores with everything to build, in seconds.
    pub(super) typical_s: u64,
    /// Does it, and adds the tests that it ran.
    pub(super) run: fn(&Path, &mut Totals) -> Result<()>,
}

/// The stages in the order in which they run: the fastest first.
pub(super) const STAGES: &[Stage] = &[
    Stage { name: "fmt", about: "formatting", typical_s: 2, run: fmt },
    Stage { name: "tidy", about: "the project's style", typical_s: 1, run: tidy },
    Stage { name: "clippy", about: "lints, warnings as errors", typical_s: 80, run: clippy },
    Stage { name: "deny", about: "licences and sources of dependencies (no advisories)", typical_s: 80, run: deny },
    Stage { name: "test", about: "unit and integration tests on this host", typical_s: 270, run: test },
    Stage { name: "e2e-host", about: "the demo with 20 clones on this host", typical_s: 2, run: e2e::on_this_host },
    Stage {
        name: "e2e-svm",
        about: "the demo and the integration tests on an AMD host (emulated)",
        typical_s: 240,
        run: e2e::on_svm_host,
    },
];

/// The folders of the workspaces: the main one and those that are excluded from it.
pub(super) fn workspaces(root: &Path) -> Vec<PathBuf> {
    let excluded = ["guest/unikernel", "fuzz"].map(|folder| root.join(folder));
    let present = excluded.into_iter().filter(|folder| folder.join("Cargo.toml").is_file());
    std::iter::once(root.to_path_buf()).chain(present).collect()
}

/// Runs cargo in each workspace: its own .cargo/config.toml then says for which target.
fn cargo_everywhere(root: &Path, main: &[&str], others: &[&str]) -> Result<()> {
    let mut arguments = main;
    for folder in workspaces(root) {
        output::run(Command::new(crate::cargo()).args(arguments).current_dir(&folder), |_| {})
            .with_context(|| format!("cargo {} in {}", arguments.join(" "), folder.display()))?;
        arguments = others;
    }
    Ok(())
}

fn fmt(root: &Path, _: &mut Totals) -> Result<()> {
    cargo_everywhere(root, &["fmt", "--all", "--check"], &["fmt", "--all", "--check"])
}

fn tidy(root: &Path, _: &mut Totals) -> Result<()> {
    crate::tidy::run(root)
}

fn clippy(root: &Path, _: &mut Totals) -> Result<()> {
    // The others have no test harness to check: they run without an operating system, or under a fuzzer.
    let main = ["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"];
    cargo_everywhere(root, &main, &["clippy", "--quiet", "--", "-D", "warnings"])
}

fn deny(root: &Path, _: &mut Totals) -> Result<()> {
    deny::run(root)
}

fn test(root: &Path, totals: &mut Totals) -> Result<()> {
    let mut command = Command::new(crate::cargo());
    command.args(["test", "--workspace", "--no-fail-fast"]).current_dir(root);
    output::run(&mut command, |line| totals.read(line))
}
