//! Looking at processes from outside, for tests and `ramet doctor`: what they hold, share and may do.
//!
//! A process changes while it is looked at: what vanished in between is left out, and a result is exact only for
//! processes that hold still.

mod maps;
mod status;

use std::cmp::Ordering;
use std::os::fd::RawFd;
use std::path::PathBuf;

use rustix::io::Errno;
use rustix::process::Pid;

pub use maps::{Mapping, ParseMapsError, parse_maps};
pub use status::{ParseStatusError, Status, parse_status};

use crate::sys::{self, Compared};

/// Why a process could not be looked at.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    /// A file in /proc could not be read: the process ended, or looking at it is not allowed (it takes
    /// CAP_SYS_PTRACE for a confined machine).
    #[error("{path} could not be read")]
    Read {
        /// The file.
        path: String,
        /// The error.
        source: std::io::Error,
    },
    /// /proc/PID/status does not have the documented form.
    #[error("/proc/{pid}/status was not understood")]
    Status {
        /// The process.
        pid: i32,
        /// What was not understood.
        source: ParseStatusError,
    },
    /// /proc/PID/maps does not have the documented form.
    #[error("/proc/{pid}/maps was not understood")]
    Maps {
        /// The process.
        pid: i32,
        /// What was not understood.
        source: ParseMapsError,
    },
    /// kcmp failed.
    #[error("Comparing processes {first} and {second} with kcmp failed")]
    Compare {
        /// One process.
        first: i32,
        /// The other.
        second: i32,
        /// Its error: EPERM needs CAP_SYS_PTRACE, ENOSYS a kernel with CONFIG_KCMP.
        source: Errno,
    },
}

/// An open descriptor of a process.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Descriptor {
    /// The process.
    pub pid: i32,
    /// The number.
    pub fd: RawFd,
    /// What it refers to, as /proc shows it: a path, `socket:[N]`, `anon_inode:kvm-vm`...
    pub target: PathBuf,
}

fn read_error(path: &str) -> impl FnOnce(std::io::Error) -> InspectError {
    let path = path.to_owned();
    move |source| InspectError::Read { path, source }
}

fn raw(pid: Pid) -> i32 {
    pid.as_raw_nonzero().get()
}

/// The open descriptors of a process, by number.
pub fn descriptors(pid: Pid) -> Result<Vec<Descriptor>, InspectError> {
    let pid = raw(pid);
    let path = format!("/proc/{pid}/fd");
    // All names first: the descriptor that lists the caller's own directory is closed before the names are read.
    let entries = std::fs::read_dir(&path).map_err(read_error(&path))?;
    let names: Vec<_> = entries
        .map(|entry| entry.map(|entry| entry.file_name()))
        .collect::<Result<_, _>>()
        .map_err(read_error(&path))?;
    let mut found = Vec::with_capacity(names.len());
    for fd in names.iter().filter_map(|name| name.to_str()?.parse().ok()) {
        match std::fs::read_link(format!("{path}/{fd}")) {
            Ok(target) => found.push(Descriptor { pid, fd, target }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(read_error(&path)(error)),
        }
    }
    found.sort();
    Ok(found)
}

/// What /proc/PID/status says about a process.
pub fn status(pid: Pid) -> Result<Status, InspectError> {
    let pid = raw(pid);
    let path = format!("/proc/{pid}/status");
    let text = std::fs::read_to_string(&path).map_err(read_error(&path))?;
    parse_status(&text).map_err(|source| InspectError::Status { pid, source })
}

/// The memory mappings of a process.
pub fn mappings(pid: Pid) -> Result<Vec<Mapping>, InspectError> {
    let pid = raw(pid);
    let path = format!("/proc/{pid}/maps");
    let bytes = std::fs::read(&path).map_err(read_error(&path))?;
    parse_maps(&bytes).map_err(|source| InspectError::Maps { pid, source })
}

/// Whether two descriptors share one open file description (offset, flags, locks).
pub fn same_description(first: (Pid, RawFd), second: (Pid, RawFd)) -> Result<bool, InspectError> {
    compare(first.0, second.0, Compared::File(first.1, second.1)).map(Ordering::is_eq)
}

/// Whether two processes (or threads) share one address space.
pub fn same_address_space(first: Pid, second: Pid) -> Result<bool, InspectError> {
    compare(first, second, Compared::AddressSpace).map(Ordering::is_eq)
}

fn compare(first: Pid, second: Pid, compared: Compared) -> Result<Ordering, InspectError> {
    sys::kcmp(first, second, compared).map_err(|source| InspectError::Compare {
        first: raw(first),
        second: raw(second),
        source,
    })
}

/// The open file descriptions that are shared by at least two of `pids`: for each, all descriptors that refer to it.
///
/// Descriptions that only one process holds, however often, are not listed. Takes O(n log n) calls of kcmp for n
/// descriptors.
pub fn shared_descriptions(pids: &[Pid]) -> Result<Vec<Vec<Descriptor>>, InspectError> {
    // Kept in kcmp's order, so that each new descriptor finds its group by binary search.
    let mut groups: Vec<(Pid, Vec<Descriptor>)> = Vec::new();
    for &pid in pids {
        for descriptor in descriptors(pid)? {
            let mut failure = None;
            let position = groups.binary_search_by(|(owner, group)| {
                compare(*owner, pid, Compared::File(group[0].fd, descriptor.fd)).unwrap_or_else(|error| {
                    failure.get_or_insert(error);
                    Ordering::Equal
                })
            });
            match (failure, position) {
                (Some(InspectError::Compare { source: Errno::BADF, .. }), _) => {}
                (Some(error), _) => return Err(error),
                (None, Ok(at)) => groups[at].1.push(descriptor),
                (None, Err(at)) => groups.insert(at, (pid, vec![descriptor])),
            }
        }
    }
    let mut shared: Vec<_> = groups
        .into_iter()
        .map(|(_, group)| group)
        .filter(|group| group.iter().any(|descriptor| descriptor.pid != group[0].pid))
        .collect();
    shared.sort();
    Ok(shared)
}

/// The children of a process that exist now, from /proc/PID/task/*/children (CONFIG_PROC_CHILDREN).
pub fn children(pid: Pid) -> Result<Vec<Pid>, InspectError> {
    let tasks = format!("/proc/{}/task", raw(pid));
    let mut found = Vec::new();
    for task in std::fs::read_dir(&tasks).map_err(read_error(&tasks))? {
        let path = task.map_err(read_error(&tasks))?.path().join("children");
        let text = std::fs::read_to_string(&path).map_err(read_error(&path.to_string_lossy()))?;
        let numbers = text.split_ascii_whitespace().filter_map(|word| word.parse::<i32>().ok());
        found.extend(numbers.filter(|number| *number > 0).filter_map(Pid::from_raw));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use rustix::process::getpid;

    use super::*;

    #[test]
    fn a_duplicate_shares_its_description_and_a_second_open_does_not() {
        let first = std::fs::File::open("/dev/null").unwrap();
        let duplicate = first.try_clone().unwrap();
        let second = std::fs::File::open("/dev/null").unwrap();
        let at = |file: &std::fs::File| (getpid(), file.as_raw_fd());
        assert!(same_description(at(&first), at(&duplicate)).unwrap());
        assert!(!same_description(at(&first), at(&second)).unwrap());
        assert!(same_address_space(getpid(), getpid()).unwrap());
        let listed = descriptors(getpid()).unwrap();
        let found = listed.iter().find(|descriptor| descriptor.fd == first.as_raw_fd()).unwrap();
        assert_eq!(found.target, PathBuf::from("/dev/null"));
    }

    #[test]
    fn own_status_and_mappings_are_understood() {
        let status = status(getpid()).unwrap();
        assert!(status.threads >= 1);
        assert_eq!(status.uid[0], rustix::process::getuid().as_raw());
        assert!(mappings(getpid()).unwrap().iter().any(|mapping| mapping.path == b"[stack]"));
    }

    #[test]
    fn a_process_that_does_not_exist_is_an_error_that_names_the_file() {
        let error = status(Pid::from_raw(i32::MAX).unwrap()).unwrap_err();
        assert_eq!(error.to_string(), "/proc/2147483647/status could not be read");
    }
}
