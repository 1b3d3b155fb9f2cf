//! The end-to-end stages: the demo, on this host and on the AMD host, and there the integration tests too.
//!
//! On this host those tests have run already, as part of `cargo test`; the programs are the ones that it built.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use super::totals::Totals;
use super::{demo, output};

/// Clones of a demo in the tests.
const CLONES: u64 = 20;

/// The crate of the demo.
const DEMO: &str = "ramet";

/// Crates whose integration tests (the programs in tests/) run on the AMD host.
const TESTED: &[&str] = &[DEMO, "ramet-kvm"];

/// Begins the line that carries the demo's answer on the AMD host's console.
const ANSWER: &str = "demo answers: ";

/// A line of what cargo says with `--message-format=json`.
#[derive(Debug, Deserialize)]
struct Message {
    reason: String,
    manifest_path: Option<PathBuf>,
    target: Option<Target>,
    profile: Option<Profile>,
    executable: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
struct Target {
    kind: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Profile {
    test: bool,
}

/// The programs under test.
#[derive(Debug, Default, PartialEq, Eq)]
struct Programs {
    demo: PathBuf,
    tests: Vec<PathBuf>,
}

/// Runs the demo here.
pub(super) fn on_this_host(root: &Path, totals: &mut Totals) -> Result<()> {
    let program = build(root)?.demo;
    let mut json = String::new();
    let clones = CLONES.to_string();
    output::run(Command::new(program).args(["demo", "--json", "--clones", &clones]), |line| {
        json += line;
        json.push('\n');
    })?;
    judge(&json, totals)
}

/// Runs the demo and the integration tests on the AMD host.
pub(super) fn on_svm_host(root: &Path, totals: &mut Totals) -> Result<()> {
    let programs = build(root)?;
    let mut command = Command::new(root.join("e2e/svm/run.sh"));
    command.args(["-t", "900", "-b"]).arg(&programs.demo);
    for program in &programs.tests {
        command.arg("-b").arg(program);
    }
    command.arg(script(&programs.tests)).current_dir(root);
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

/// Builds as `cargo test --workspace` does, so that nothing is built twice.
fn build(root: &Path) -> Result<Programs> {
    let output = Command::new(crate::cargo())
        .args(["test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"])
        .stderr(std::process::Stdio::inherit())
        .current_dir(root)
        .output()
        .context("Could not run cargo")?;
    ensure!(output.status.success(), "cargo test --no-run: {}", output.status);
    programs(&String::from_utf8_lossy(&output.stdout))
}

fn programs(messages: &str) -> Result<Programs> {
    let mut programs = Programs::default();
    for line in messages.lines().filter(|line| line.starts_with('{')) {
        let message: Message = serde_json::from_str(line).context("Could not read cargo's message")?;
        let Message { reason, manifest_path: Some(manifest), target: Some(target), .. } = message else { continue };
        let (Some(program), Some(profile)) = (message.executable, message.profile) else { continue };
        let folder = manifest.parent().and_then(Path::file_name).unwrap_or_default();
        let of_kind = |kind: &str| reason == "compiler-artifact" && target.kind.iter().any(|own| own == kind);
        if of_kind("bin") && !profile.test && folder == DEMO {
            programs.demo = program;
        } else if of_kind("test") && TESTED.iter().any(|tested| folder == *tested) {
            programs.tests.push(program);
        }
    }
    ensure!(programs.demo != Path::new(""), "Cargo names no program of the crate {DEMO}");
    ensure!(!programs.tests.is_empty(), "There are no integration tests in {}", TESTED.join(", "));
    Ok(programs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found() {
        let message = |folder: &str, kind: &str, test: bool, program: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/r/{folder}/Cargo.toml","target":{{"kind":["{kind}"]}},"profile":{{"test":{test}}},"executable":"{program}"}}"#
            )
        };
        let messages = [
            "ignored".to_owned(),
            message("crates/ramet", "test", true, "/t/fork-1"),
            message("crates/ramet", "bin", true, "/t/ramet-unit-tests"),
            message("crates/ramet", "bin", false, "/t/ramet"),
            message("xtask", "bin", false, "/t/xtask"),
            message("bench", "test", true, "/t/other"),
            r#"{"reason":"build-finished","success":true}"#.to_owned(),
        ];
        let found = programs(&messages.join("\n")).unwrap();
        assert_eq!(found, Programs { demo: "/t/ramet".into(), tests: vec!["/t/fork-1".into()] });
        assert!(programs("").is_err());
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
