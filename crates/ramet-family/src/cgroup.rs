//! A control group for the machines of a family: what they cost together, the kernel's share included.
//!
//! The zygote is put into it before it bears anybody, so machines are born there and never moved (a move waits for an
//! RCU grace period). Layers are charged to it too, as far as machines touch them first. Version 1 (the memory controller's
//! hierarchy) and version 2 are supported.
//!
//! Deliberately absent: limits. They belong to whoever runs several families.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Distinguishes the families of one process.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// A control group, removed when dropped (its processes must have ended by then).
#[derive(Debug)]
pub(crate) struct Cgroup {
    directory: PathBuf,
    /// File with the bytes charged, if the memory controller is there.
    usage: &'static str,
}

/// Directory of this process in the hierarchy that accounts for memory, and its file of bytes charged.
fn own_directory(listing: &str) -> Option<(PathBuf, &'static str)> {
    for line in listing.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?.trim_start_matches('/'));
        if controllers.split(',').any(|controller| controller == "memory") {
            return Some((Path::new("/sys/fs/cgroup/memory").join(path), "memory.usage_in_bytes"));
        }
    }
    let unified = listing.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Some((Path::new("/sys/fs/cgroup").join(unified), "memory.current"))
}

impl Cgroup {
    /// Makes a group below this process's own and puts the process `pid` into it.
    pub(crate) fn new(pid: u32) -> io::Result<Self> {
        let listing = fs::read_to_string("/proc/self/cgroup")?;
        let none = || io::Error::other("no control group hierarchy accounts for memory");
        let (own, usage) = own_directory(&listing).ok_or_else(none)?;
        // As seen from within a container the path may be that of the host: the mounted root is this process's own.
        let mount = if usage == "memory.current" { "/sys/fs/cgroup" } else { "/sys/fs/cgroup/memory" };
        let base = if own.is_dir() { own } else { PathBuf::from(mount) };
        let directory = base.join(format!("ramet-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
        fs::create_dir(&directory)?;
        let group = Self { directory, usage };
        fs::write(group.directory.join("cgroup.procs"), pid.to_string())?;
        Ok(group)
    }

    /// Bytes charged, if the memory controller is there.
    pub(crate) fn usage_bytes(&self) -> Option<u64> {
        fs::read_to_string(self.directory.join(self.usage)).ok()?.trim().parse().ok()
    }

    /// Its directory.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // The last process may still be on its way out: a group is busy for a moment longer.
        for _ in 0..50 {
            match fs::remove_dir(&self.directory) {
                Ok(()) => return,
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                    std::thread::sleep(std::time::Duration::from_millis(2));
                }
                Err(error) => return tracing::debug!(%error, "a control group stays behind"),
            }
        }
        tracing::warn!(directory = %self.directory.display(), "a control group stays behind: it is still in use");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_are_found_in_the_listing() {
        let one = "9:name=systemd:/\n4:cpu,memory:/a/b\n0::/\n";
        let expected = (PathBuf::from("/sys/fs/cgroup/memory/a/b"), "memory.usage_in_bytes");
        assert_eq!(own_directory(one), Some(expected));
        let two = "0::/user.slice\n";
        assert_eq!(own_directory(two), Some((PathBuf::from("/sys/fs/cgroup/user.slice"), "memory.current")));
        assert_eq!(own_directory("3:cpu:/\n"), None);
    }
}
