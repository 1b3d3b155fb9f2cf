//! What this host offers: for `ramet doctor`, and for the tests' table of hosts.
//!
//! Every check says what was found, what is lost if that is not all, and how to get it. Nothing is changed on the host.
//!
//! Deliberately absent: any use of a report to choose a code path. What needs a capability tries it.

mod kvm;
mod memory;
mod process;

use serde::{Deserialize, Serialize};

/// How good what was found is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// All that Ramet uses.
    Ok,
    /// Ramet runs, with less.
    Degraded,
    /// Ramet cannot run.
    Missing,
}

/// One thing that a host has or lacks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// What, in a few words; unique in a report.
    pub name: String,
    /// What there is.
    pub found: String,
    /// Whether that will do.
    pub status: Status,
    /// What is lost without it; empty if the status is [`Status::Ok`].
    pub lost: String,
    /// How to get it; empty if the status is [`Status::Ok`].
    pub remedy: String,
}

impl Check {
    fn ok(name: impl Into<String>, found: impl Into<String>) -> Self {
        let (lost, remedy) = (String::new(), String::new());
        Self { name: name.into(), found: found.into(), status: Status::Ok, lost, remedy }
    }

    fn lacking(
        status: Status,
        name: impl Into<String>,
        found: impl Into<String>,
        lost: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { name: name.into(), found: found.into(), status, lost: lost.into(), remedy: remedy.into() }
    }
}

/// All checks, in the order in which they are best read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostReport {
    /// The checks.
    pub checks: Vec<Check>,
}

impl HostReport {
    /// Looks at everything. Takes a few milliseconds.
    pub fn gather() -> Self {
        let checks = [kvm::checks(), memory::checks(), process::checks()].concat();
        Self { checks }
    }

    /// Whether nothing is missing without which Ramet cannot run.
    pub fn can_run(&self) -> bool {
        self.checks.iter().all(|check| check.status != Status::Missing)
    }

    /// The check of this name.
    pub fn check(&self, name: &str) -> Option<&Check> {
        self.checks.iter().find(|check| check.name == name)
    }
}

/// A file's first line without its end, if the file can be read.
fn first_line(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok()?.lines().next().map(str::to_owned)
}

/// A number in a file of /proc/sys.
fn sysctl(path: &str) -> Option<u64> {
    first_line(path)?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn a_report_is_complete_and_says_what_to_do() {
        let report = HostReport::gather();
        let names: HashSet<_> = report.checks.iter().map(|check| &check.name).collect();
        assert_eq!(names.len(), report.checks.len(), "names are unique");
        assert!(report.checks.len() > 40);
        for check in &report.checks {
            assert!(!check.found.is_empty(), "{check:?}");
            let silent = check.lost.is_empty() && check.remedy.is_empty();
            assert_eq!(silent, check.status == Status::Ok, "{check:?}");
        }
        assert!(report.can_run(), "these tests need KVM: {:?}", report.check("/dev/kvm"));
        let json = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<HostReport>(&json).unwrap(), report);
    }

    #[test]
    fn a_missing_check_stops_it() {
        let mut report = HostReport { checks: vec![Check::ok("a", "b")] };
        assert!(report.can_run());
        report.checks.push(Check::lacking(Status::Degraded, "c", "d", "e", "f"));
        assert!(report.can_run());
        report.checks.push(Check::lacking(Status::Missing, "g", "h", "i", "j"));
        assert!(!report.can_run());
    }
}
