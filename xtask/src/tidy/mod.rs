//! `cargo xtask tidy`: the part of the project's style that a program can check.
//!
//! Each rule lives in a module of its own, takes a [`Repository`] (or a piece of one) and returns findings; nothing
//! here changes a file. What rustc, clippy and rustfmt check already is deliberately absent.

mod arrows;
mod forbidden;
mod hosts_table;
mod length;
mod links;
mod repository;
mod scan;
mod text;
mod unsafe_line;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};

pub(crate) use hosts_table::render_into as render_hosts;
pub(crate) use repository::Repository;

/// A rule: its name in a finding, and why it exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rule {
    /// Crates depend downwards only.
    Arrows,
    /// Asynchronous runtimes stay where they belong.
    Async,
    /// Every file says first what it is for.
    Docs,
    /// Constructs that the project does without.
    Forbidden,
    /// docs/hosts.md shows what docs/hosts.toml says.
    HostsTable,
    /// Modules and functions have a size that fits a head.
    Length,
    /// Links between documents resolve.
    Links,
    /// No path or host of the machine that a file was written on.
    Places,
    /// Each `unsafe` block has its reason.
    Safety,
    /// No large files.
    Size,
    /// `unsafe` only where it is meant to be.
    UnsafeLine,
}

impl Rule {
    const ALL: [Self; 11] = [
        Self::Arrows,
        Self::Async,
        Self::Docs,
        Self::Forbidden,
        Self::HostsTable,
        Self::Length,
        Self::Links,
        Self::Places,
        Self::Safety,
        Self::Size,
        Self::UnsafeLine,
    ];

    /// The name and the reason, as a finding prints them.
    fn describe(self) -> (&'static str, &'static str) {
        match self {
            Self::Arrows => ("arrows", "a crate can be understood and tested without what is above it"),
            Self::Async => ("async", "a vCPU's process stays free of executors; only the daemon may need one"),
            Self::Docs => ("docs", "a reader learns first what a file is for and what is absent"),
            Self::Forbidden => ("forbidden", "each is a way to leave something untested, unfinished or unreported"),
            Self::HostsTable => ("hosts-table", "tests read the TOML file, people the table: they must agree"),
            Self::Length => ("length", "what does not fit a screen or a head is not reviewed"),
            Self::Links => ("links", "a document that points nowhere is not read twice"),
            Self::Places => ("places", "the repository works on any machine"),
            Self::Safety => ("safety", "the invariant is what a reviewer of unsafe code checks"),
            Self::Size => ("size", "history keeps every byte for ever"),
            Self::UnsafeLine => ("unsafe-line", "memory safety rests on a few crates that are read with that in mind"),
        }
    }
}

/// One violation.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    /// Path in the repository.
    pub(crate) path: String,
    /// Line from 1.
    pub(crate) line: usize,
    /// The rule.
    pub(crate) rule: Rule,
    /// What is wrong and what to do.
    pub(crate) message: String,
}

impl Finding {
    fn new(path: &str, line: usize, rule: Rule, message: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, rule, message: message.into() }
    }
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (name, why) = self.rule.describe();
        write!(f, "{}:{}: {name}: {} ({why})", self.path, self.line, self.message)
    }
}

/// Checks the repository and prints what it finds.
///
/// # Errors
/// When git or cargo cannot describe the repository, or when there is a finding.
pub(crate) fn run(root: &Path) -> Result<()> {
    let started = Instant::now();
    let repository = Repository::open(root).context("Could not list the repository's files")?;
    let findings = check(&repository, root)?;
    for finding in &findings {
        println!("{finding}");
    }
    print!("{}", summary(&findings));
    println!("{} files in {} ms", repository.files.len(), started.elapsed().as_millis());
    match findings.len() {
        0 => Ok(()),
        1 => anyhow::bail!("1 finding"),
        n => anyhow::bail!("{n} findings"),
    }
}

fn check(repository: &Repository, root: &Path) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for (path, source) in repository.rust() {
        findings.extend(forbidden::check(path, &source));
        findings.extend(length::check(path, &source));
        findings.extend(unsafe_line::check(path, &source));
    }
    findings.extend(text::check(repository));
    findings.extend(links::check(repository));
    findings.extend(hosts_table::check(repository));
    findings.extend(unsafe_line::check_roots(repository));
    for crates in arrows::read(root)? {
        findings.extend(arrows::check(&crates));
    }
    findings.sort();
    findings.dedup();
    Ok(findings)
}

/// A table of the rules and how often each was broken.
fn summary(findings: &[Finding]) -> String {
    let mut counts = BTreeMap::<Rule, usize>::new();
    for finding in findings {
        *counts.entry(finding.rule).or_default() += 1;
    }
    let rows = Rule::ALL.iter().map(|rule| {
        let (name, why) = rule.describe();
        format!("{name:<12} {:>4}  {why}\n", counts.get(rule).copied().unwrap_or(0))
    });
    std::iter::once(format!("{:<12} {:>4}  why\n", "rule", "hits")).chain(rows).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_names_place_rule_and_reason() {
        let finding = Finding::new("a/b.rs", 3, Rule::Size, "too large");
        assert_eq!(finding.to_string(), "a/b.rs:3: size: too large (history keeps every byte for ever)");
    }

    #[test]
    fn the_summary_counts_by_rule() {
        let findings = [Finding::new("a", 1, Rule::Size, ""), Finding::new("b", 1, Rule::Size, "")];
        let table = summary(&findings);
        assert!(table.contains("size            2  history"), "{table}");
        assert_eq!(table.lines().count(), Rule::ALL.len() + 1);
    }

    /// The repository obeys its own rules: also what `cargo xtask ci` says, but seen by `cargo test` alone too.
    #[test]
    fn this_crate_is_tidy() {
        let root = crate::root().expect("the tests run inside the repository");
        let repository = Repository::open(&root).expect("git lists the files");
        let findings = check(&repository, &root).expect("cargo describes the workspace");
        let own: Vec<_> = findings.iter().filter(|f| f.path.starts_with("xtask/")).map(Finding::to_string).collect();
        assert!(own.is_empty(), "{}", own.join("\n"));
    }
}
