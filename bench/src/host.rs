//! The host that a report was measured on, and the commit that was measured.
//!
//! What is found out here is only for the report's reader; what Ramet itself needs to know of a host is `ramet
//! doctor`'s business.

use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};

/// A host, as far as it explains a number.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Host {
    /// The processor's name for itself, with family, model and stepping.
    pub(crate) cpu: String,
    /// CPUs that this process may run on.
    pub(crate) cores: usize,
    /// Memory in MiB.
    pub(crate) memory_mib: u64,
    /// The kernel's release.
    pub(crate) kernel: String,
    /// The kind of KVM: by the module that backs it.
    pub(crate) kvm: String,
    /// Processes that wanted to run, on average over the minute before the benchmark: what else the host was busy with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) load_before: Option<f64>,
    /// The microcode's revision, where the host tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) microcode: Option<String>,
}

impl Host {
    /// This host. What it does not tell is "unknown".
    pub(crate) fn detect() -> Self {
        let cpuinfo = read("/proc/cpuinfo");
        let meminfo = read("/proc/meminfo");
        let memory_kib = field(&meminfo, "MemTotal").and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
        Self {
            cpu: cpu(&cpuinfo),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            memory_mib: memory_kib.unwrap_or(0) / 1024,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            kvm: kvm(|path| Path::new(path).exists()).to_owned(),
            load_before: None,
            microcode: field(&cpuinfo, "microcode").map(str::to_owned),
        }
    }
}

/// The load of the last minute, where the host tells.
pub(crate) fn load() -> Option<f64> {
    read("/proc/loadavg").split(' ').next()?.parse().ok()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// The first value of `name : value` or `name: value`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let value =
        |line: &'a str| line.split_once(':').filter(|(key, _)| key.trim() == name).map(|(_, value)| value.trim());
    text.lines().find_map(value)
}

fn cpu(cpuinfo: &str) -> String {
    let get = |name| field(cpuinfo, name).unwrap_or("unknown");
    format!("{} (family {} model {} stepping {})", get("model name"), get("cpu family"), get("model"), get("stepping"))
}

fn kvm(exists: impl Fn(&str) -> bool) -> &'static str {
    if !exists("/dev/kvm") {
        return "none";
    }
    let kinds = [("kvm_intel", "VMX"), ("kvm_amd", "SVM"), ("kvm_pvm", "software (PVM)")];
    let loaded = |(module, _): &&(&str, &str)| exists(&format!("/sys/module/{module}"));
    kinds.iter().find(loaded).map_or("unknown", |(_, kind)| kind)
}

/// The commit of the work tree that the program runs in; a `+` follows when files differ from it.
pub(crate) fn commit() -> String {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else { return "unknown".to_owned() };
    let changed = git(&["status", "--porcelain", "--untracked-files=no"]).is_none_or(|changes| !changes.is_empty());
    if changed { commit + "+" } else { commit }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_is_named() {
        let text = "processor\t: 0\ncpu family\t: 6\nmodel\t\t: 143\nmodel name\t: Some CPU @ 2 GHz\nstepping\t: 8\n\n";
        assert_eq!(cpu(text), "Some CPU @ 2 GHz (family 6 model 143 stepping 8)");
        assert_eq!(cpu(""), "unknown (family unknown model unknown stepping unknown)");
    }

    #[test]
    fn the_kind_of_kvm_is_told_by_its_module() {
        assert_eq!(kvm(|_| false), "none");
        assert_eq!(kvm(|path| path == "/dev/kvm"), "unknown");
        assert_eq!(kvm(|path| path == "/dev/kvm" || path.ends_with("kvm_amd")), "SVM");
    }

    #[test]
    fn this_host_is_described() {
        let host = Host::detect();
        assert!(load().is_some_and(|load| load >= 0.0));
        assert!(host.cores > 0 && host.memory_mib > 0 && !host.kernel.is_empty(), "{host:?}");
    }
}
