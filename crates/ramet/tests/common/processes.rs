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

/// Processor time that a process has used, in ticks of 10 ms; what its guest uses counts.
pub fn processor_ticks(of: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{of}/stat")).unwrap();
    // utime and stime: fields 14 and 15 of proc_pid_stat(5), of which the second, in parentheses, may contain spaces.
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
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
    pub descriptors: Vec<(i32, std::path::PathBuf)>,
    children: Vec<u32>,
    pub shared_mappings: usize,
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

/// A folder that goes when the test ends.
pub struct Scratch(std::path::PathBuf);

impl Scratch {
    pub fn new() -> Self {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("ramet-test-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn file(&self, name: &str, bytes: &[u8]) -> std::path::PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}
