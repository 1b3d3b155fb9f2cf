//! Crate arrows point down only, and asynchronous runtimes stay where they belong.
//!
//! The allowed arrows are a table, not a rule to derive: a new arrow is a decision, made here and in ARCHITECTURE.md.
//! Dependencies of dependencies are cargo-deny's business (deny.toml).

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::{Finding, Rule};

/// Which of the project's crates each of them may use.
const ALLOWED: &[(&str, &[&str])] = &[
    ("ramet-abi", &[]),
    ("ramet-state", &["ramet-abi"]),
    ("ramet-memory", &["ramet-abi", "ramet-state"]),
    ("ramet-kvm", &["ramet-abi", "ramet-state"]),
    ("ramet-process", &[]),
    ("ramet-devices", &["ramet-abi", "ramet-state"]),
    ("ramet-boot", &["ramet-abi", "ramet-state"]),
    ("ramet-machine", &["ramet-abi", "ramet-state", "ramet-memory", "ramet-kvm", "ramet-devices", "ramet-process"]),
    (
        "ramet-vmm",
        &["ramet-abi", "ramet-state", "ramet-memory", "ramet-kvm", "ramet-devices", "ramet-process", "ramet-machine"],
    ),
    (
        "ramet-family",
        &["ramet-abi", "ramet-state", "ramet-memory", "ramet-kvm", "ramet-boot", "ramet-vmm", "ramet-process"],
    ),
    (
        "ramet",
        &[
            "ramet-abi",
            "ramet-state",
            "ramet-family",
            "ramet-kvm",
            "ramet-vmm",
            "ramet-memory",
            "ramet-process",
            "ramet-unikernel",
        ],
    ),
    ("testkit", &["ramet-abi", "ramet-state", "ramet-memory", "ramet-devices"]),
    (
        "bench",
        &[
            "ramet-abi",
            "ramet-state",
            "ramet-family",
            "ramet-kvm",
            "ramet-vmm",
            "ramet-memory",
            "ramet-process",
            "ramet-unikernel",
        ],
    ),
    ("xtask", &[]),
    // Both the guest and the crate that embeds it.
    ("ramet-unikernel", &["ramet-abi"]),
];

/// Any crate's tests may use these: they need devices to torment and a guest to run.
const IN_TESTS: &[&str] = &["testkit", "ramet-unikernel"];

/// Asynchronous runtimes and what drags them in.
const ASYNC: &[&str] = &["tokio", "axum", "hyper", "async-std", "smol"];

/// Crates that may use them. None today.
const ASYNC_ALLOWED: &[&str] = &[];

/// What `cargo metadata` says, as far as it matters here.
#[derive(Debug, Deserialize)]
pub(crate) struct Crates {
    packages: Vec<Package>,
    workspace_root: PathBuf,
}

#[derive(Debug, Deserialize)]
struct Package {
    name: String,
    manifest_path: PathBuf,
    dependencies: Vec<Dependency>,
}

#[derive(Debug, Deserialize)]
struct Dependency {
    name: String,
    kind: Option<String>,
    path: Option<PathBuf>,
    #[serde(default)]
    optional: bool,
}

/// Asks cargo about the main workspace and about those that are excluded from it.
///
/// # Errors
/// When cargo refuses a manifest.
pub(crate) fn read(root: &Path) -> Result<Vec<Crates>> {
    let manifests = ["Cargo.toml", "guest/unikernel/Cargo.toml", "fuzz/Cargo.toml"];
    let present = manifests.iter().map(|manifest| root.join(manifest)).filter(|manifest| manifest.exists());
    present.map(|manifest| metadata(&manifest, root)).collect()
}

fn metadata(manifest: &Path, root: &Path) -> Result<Crates> {
    let output = Command::new(crate::cargo())
        .args(["metadata", "--no-deps", "--format-version=1", "--offline", "--manifest-path"])
        .arg(manifest)
        .output()
        .context("Could not run cargo metadata")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "cargo metadata refused {}: {}", manifest.display(), errors.trim());
    let mut crates: Crates =
        serde_json::from_slice(&output.stdout).context("Could not read cargo metadata's answer")?;
    root.clone_into(&mut crates.workspace_root);
    Ok(crates)
}

/// Checks what the crates declare.
pub(crate) fn check(crates: &Crates) -> Vec<Finding> {
    crates.packages.iter().flat_map(|package| check_package(package, &crates.workspace_root)).collect()
}

fn check_package(package: &Package, root: &Path) -> Vec<Finding> {
    let manifest = package.manifest_path.strip_prefix(root).unwrap_or(&package.manifest_path);
    let path = manifest.display().to_string();
    let name = package.name.as_str();
    let mut findings = Vec::new();
    let Some((_, allowed)) = ALLOWED.iter().find(|(known, _)| *known == name) else {
        let message = format!("crate {name} has no row in the table of arrows: add it to xtask/src/tidy/arrows.rs");
        return vec![Finding::new(&path, 1, Rule::Arrows, message)];
    };
    for dependency in &package.dependencies {
        let target = dependency.name.as_str();
        let in_tests = dependency.kind.as_deref() == Some("dev");
        let own = dependency.path.is_some();
        let fits = allowed.contains(&target) || (in_tests && IN_TESTS.contains(&target));
        if own && !fits {
            let message = format!("{name} may not depend on {target}: allowed are {}", list(allowed));
            findings.push(Finding::new(&path, 1, Rule::Arrows, message));
        }
        if ASYNC.contains(&target) && !ASYNC_ALLOWED.contains(&name) {
            let message = format!("{name} may not depend on {target}: allowed in {}", list(ASYNC_ALLOWED));
            findings.push(Finding::new(&path, 1, Rule::Async, message));
        }
        if dependency.optional {
            let message = format!("{name} declares {target} optional: an optional dependency is a cargo feature");
            findings.push(Finding::new(&path, 1, Rule::Forbidden, message));
        }
    }
    findings
}

fn list(names: &[&str]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(name: &str, dependencies: &str) -> Vec<String> {
        let json = format!(
            r#"{{"workspace_root": "/r", "packages": [{{"name": "{name}", "manifest_path": "/r/crates/{name}/Cargo.toml",
               "dependencies": [{dependencies}]}}]}}"#
        );
        check(&serde_json::from_str(&json).unwrap()).iter().map(Finding::to_string).collect()
    }

    fn own(name: &str, kind: &str) -> String {
        format!(r#"{{"name": "{name}", "kind": {kind}, "path": "/r/crates/{name}"}}"#)
    }

    #[test]
    fn downward_arrows_pass() {
        assert!(findings("ramet-memory", &own("ramet-state", "null")).is_empty());
        assert!(findings("ramet-memory", &own("testkit", "\"dev\"")).is_empty());
        assert!(findings("ramet-memory", r#"{"name": "libc", "kind": null, "path": null}"#).is_empty());
    }

    #[test]
    fn upward_arrows_fail() {
        let found = findings("ramet-memory", &own("ramet-kvm", "null"));
        assert_eq!(found.len(), 1);
        assert!(
            found[0].starts_with("crates/ramet-memory/Cargo.toml:1: arrows: ramet-memory may not depend on ramet-kvm")
        );
        assert_eq!(findings("ramet-memory", &own("testkit", "null")).len(), 1);
        assert_eq!(findings("ramet-state", &own("ramet-family", "\"dev\"")).len(), 1);
        assert_eq!(findings("ramet-state", &own("ramet-family", "\"build\"")).len(), 1);
    }

    #[test]
    fn unknown_crates_fail() {
        assert!(findings("novel", "")[0].contains("has no row"));
    }

    #[test]
    fn runtimes_and_optional_dependencies_fail() {
        assert!(findings("ramet", r#"{"name": "tokio", "kind": null, "path": null}"#)[0].contains(": async: "));
        let optional = r#"{"name": "libc", "kind": null, "path": null, "optional": true}"#;
        assert!(findings("ramet", optional)[0].contains("optional"));
    }

    /// The table itself must not contain a cycle, or it would permit what it is there to prevent.
    #[test]
    fn the_table_has_no_cycle() {
        let mut done: Vec<&str> = Vec::new();
        while done.len() < ALLOWED.len() {
            let ready =
                |(name, uses): &&(&str, &[&str])| !done.contains(name) && uses.iter().all(|used| done.contains(used));
            let next = ALLOWED.iter().find(ready).expect("some crate's dependencies must all come before it");
            done.push(next.0);
        }
    }
}
