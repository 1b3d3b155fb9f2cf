//! The end-to-end stages: the demo, on this host and on the AMD host, and there the end-to-end tests too.
//!
//! On this host those tests have run already, as part of `cargo test`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use super::totals::Totals;
use super::{demo, output};

/// Clones of a demo in the tests.
const CLONES: u64 = 20;

/// Crates whose integration tests (the programs in tests/) are the end-to-end tests.
const TESTED: &[&str] = &["ramet"];

/// Begins the line that carries the demo's answer on the AMD host's console.
const ANSWER: &str = "demo answers: ";

/// A line of `cargo build --message-format=json`.
#[derive(Debug, Deserialize)]
struct Message {
    reason: String,
    target: Option<Target>,
    executable: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
struct Target {
    kind: Vec<String>,
}

/// Runs the demo here.
pub(super) fn on_this_host(root: &Path, totals: &mut Totals) -> Result<()> {
    let programs = build(root, &["build", "--release", "--package", "ramet"], "bin")?;
    let program = programs.first().context("Cargo names no program of the crate ramet")?;
    let mut json = String::new();
    let clones = CLONES.to_string();
    output::run(Command::new(program).args(["demo", "--json", "--clones", &clones]), |line| {
        json += line;
        json.push('\n');
    })?;
    judge(&json, totals)
}

/// Runs the demo and the end-to-end tests on the AMD host.
pub(super) fn on_svm_host(root: &Path, totals: &mut Totals) -> Result<()> {
    let demo = build(root, &["build", "--release", "--package", "ramet"], "bin")?;
    let mut arguments = vec!["test", "--no-run"];
    for package in TESTED {
        arguments.extend(["--package", package]);
    }
    let tests = build(root, &arguments, "test")?;
    ensure!(!tests.is_empty(), "There are no end-to-end tests in {}", TESTED.join(", "));
    let mut command = Command::new(root.join("e2e/svm/run.sh"));
    command.args(["-t", "900"]);
    for program in demo.iter().chain(&tests) {
        command.arg("-b").arg(program);
    }
    command.arg(script(&tests)).current_dir(root);
    let mut json = String::new();
    let ended = output::run(&mut command, |line| {
        totals.read(line);
        if let Some(answer) = line.strip_prefix(ANSWER) {
            answer.clone_into(&mut json);
        }
    });
    let judged = judge(&json, totals);
    ended.and(judged)
}

/// The shell script that the AMD host runs: everything, whatever fails on the way.
fn script(tests: &[PathBuf]) -> String {
    // The tests find the program under test by this name where the one that cargo built for them is not there.
    let mut script = "failed=0; export RAMET=/payload/ramet\n".to_owned();
    script += &format!("echo \"{ANSWER}$(./ramet demo --json --clones {CLONES} | tr -d '\\n')\"\n");
    for test in tests {
        let name = test.file_name().unwrap_or_default().to_string_lossy();
        script += &format!("echo 'running {name}'; ./{name} --test-threads=1 || failed=1\n");
    }
    script + "exit $failed"
}

fn judge(json: &str, totals: &mut Totals) -> Result<()> {
    if json.trim().is_empty() {
        totals.count(false);
        bail!("The demo gave no answer");
    }
    let judged = demo::check(json, CLONES);
    totals.count(judged.is_ok());
    judged
}

/// Builds, and returns the programs of the given kind.
fn build(root: &Path, arguments: &[&str], kind: &str) -> Result<Vec<PathBuf>> {
    let output = Command::new(crate::cargo())
        .args(arguments)
        .args(["--message-format=json-render-diagnostics"])
        .stderr(std::process::Stdio::inherit())
        .current_dir(root)
        .output()
        .context("Could not run cargo")?;
    ensure!(output.status.success(), "cargo {}: {}", arguments.join(" "), output.status);
    programs(&String::from_utf8_lossy(&output.stdout), kind)
}

fn programs(messages: &str, kind: &str) -> Result<Vec<PathBuf>> {
    let mut programs = Vec::new();
    for line in messages.lines().filter(|line| line.starts_with('{')) {
        let message: Message = serde_json::from_str(line).context("Could not read cargo's message")?;
        let fits = message.target.is_some_and(|target| target.kind.iter().any(|own| own == kind));
        if let Some(program) = message.executable.filter(|_| fits && message.reason == "compiler-artifact") {
            programs.push(program);
        }
    }
    Ok(programs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_by_kind() {
        let messages = r#"
            ignored
{"reason":"compiler-artifact","target":{"kind":["lib"]},"executable":null}
{"reason":"compiler-artifact","target":{"kind":["test"]},"executable":"/t/fork-1"}
{"reason":"compiler-artifact","target":{"kind":["bin"]},"executable":"/t/ramet"}
{"reason":"build-finished","success":true}"#;
        assert_eq!(programs(messages, "test").unwrap(), [PathBuf::from("/t/fork-1")]);
        assert_eq!(programs(messages, "bin").unwrap(), [PathBuf::from("/t/ramet")]);
    }

    #[test]
    fn the_script_runs_everything() {
        let script = script(&[PathBuf::from("/t/fork-1"), PathBuf::from("/t/pause-2")]);
        assert!(script.contains("./ramet demo --json --clones 20"), "{script}");
        assert!(script.contains("./fork-1 ") && script.contains("./pause-2 ") && script.ends_with("exit $failed"));
    }

    #[test]
    fn silence_is_a_failure() {
        let mut totals = Totals::default();
        assert!(judge("\n", &mut totals).is_err());
        assert_eq!(totals.to_string(), "0 passed, 1 failed");
    }
}
