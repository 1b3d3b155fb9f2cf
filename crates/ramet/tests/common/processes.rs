//! Looking at processes, the test's own among them.

use ramet_process::inspect;
use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;

pub fn pid(raw: u32) -> Pid {
    Pid::from_raw(raw.cast_signed()).unwrap()
}

pub fn kill(raw: u32) {
    kill_process(pid(raw), Signal::KILL).unwrap();
}

/// Whether there is such a process, and not only what is left of it until its parent has looked.
pub fn exists(raw: u32) -> bool {
    std::fs::read_to_string(Path::new("/proc").join(raw.to_string()).join("stat")).is_ok_and(|stat| {
        let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
        !matches!(state, Some('Z' | 'X') | None)
    })
}

/// The children of a process, by pid.
pub fn children(of: u32) -> Vec<u32> {
    inspect::children(pid(of))
        .unwrap_or_default()
        .iter()
        .map(|pid| pid.as_raw_nonzero().get().cast_unsigned())
        .collect()
}

/// What this process holds that a family could leave behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Footprint {
    descriptors: Vec<(i32, std::path::PathBuf)>,
    children: Vec<u32>,
    shared_mappings: usize,
}

impl Footprint {
    pub fn of_this_process() -> Self {
        let own = rustix::process::getpid();
        let descriptors = inspect::descriptors(own).unwrap().into_iter();
        Self {
            // The descriptor that lists them is one of them.
            descriptors: descriptors
                .filter(|descriptor| !descriptor.target.to_string_lossy().starts_with("/proc/"))
                .map(|descriptor| (descriptor.fd, descriptor.target))
                .collect(),
            children: children(std::process::id()),
            shared_mappings: inspect::mappings(own).unwrap().iter().filter(|mapping| mapping.shared).count(),
        }
    }
}

/// Shared memory of the whole host in KiB: tmpfs and memfds.
pub fn shared_memory_kib() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("Shmem:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}
