//! The host's limits that a family of machines runs into, and what to do about each.

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};

/// A limit of this process: what holds now and how far it may be raised without rights. `None` is "unlimited".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// In force now.
    pub soft: Option<u64>,
    /// The most that `soft` may be raised to.
    pub hard: Option<u64>,
}

impl From<Rlimit> for Limit {
    fn from(limit: Rlimit) -> Self {
        Self { soft: limit.current, hard: limit.maximum }
    }
}

/// The limits that decide how many machines fit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostLimits {
    /// Descriptors of this process (RLIMIT_NOFILE).
    pub descriptors: Limit,
    /// Processes and threads of this user (RLIMIT_NPROC).
    pub processes: Limit,
    /// Memory that this process may lock, in bytes (RLIMIT_MEMLOCK).
    pub locked_bytes: Limit,
    /// Descriptors of the whole host (fs.file-max).
    pub host_descriptors: Option<u64>,
    /// The most that RLIMIT_NOFILE can be (fs.nr_open).
    pub host_descriptors_per_process: Option<u64>,
    /// Process ids (kernel.pid_max).
    pub host_pids: Option<u64>,
    /// Threads of the whole host (kernel.threads-max).
    pub host_threads: Option<u64>,
    /// Mappings of one process (vm.max_map_count).
    pub mappings_per_process: Option<u64>,
    /// Pid namespaces per user (user.max_pid_namespaces).
    pub pid_namespaces: Option<u64>,
}

/// Reads the limits. What /proc/sys does not show is `None`.
pub fn read() -> HostLimits {
    HostLimits {
        descriptors: getrlimit(Resource::Nofile).into(),
        processes: getrlimit(Resource::Nproc).into(),
        locked_bytes: getrlimit(Resource::Memlock).into(),
        host_descriptors: sysctl("fs/file-max"),
        host_descriptors_per_process: sysctl("fs/nr_open"),
        host_pids: sysctl("kernel/pid_max"),
        host_threads: sysctl("kernel/threads-max"),
        mappings_per_process: sysctl("vm/max_map_count"),
        pid_namespaces: sysctl("user/max_pid_namespaces"),
    }
}

fn sysctl(name: &str) -> Option<u64> {
    std::fs::read_to_string(format!("/proc/sys/{name}")).ok()?.trim().parse().ok()
}

/// What [`raise_descriptor_limit`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RaisedLimit {
    /// The soft limit before; `None` is "unlimited".
    pub before: Option<u64>,
    /// The soft limit now; `None` is "unlimited".
    pub now: Option<u64>,
}

/// Why the descriptor limit could not be raised.
#[derive(Debug, thiserror::Error)]
#[error(
    "Raising the limit of open descriptors from {before:?} to {wanted:?} failed: raise it before starting, with ulimit -n or LimitNOFILE="
)]
pub struct RaiseLimitError {
    /// The soft limit, which still holds.
    pub before: Option<u64>,
    /// The hard limit.
    pub wanted: Option<u64>,
    /// The error of prlimit.
    pub source: Errno,
}

/// Raises the soft limit of open descriptors to the hard limit.
///
/// A supervisor holds several descriptors per machine. Descriptors are never used with select(2) here, so numbers
/// above 1023 do no harm.
pub fn raise_descriptor_limit() -> Result<RaisedLimit, RaiseLimitError> {
    let Rlimit { current: before, maximum } = getrlimit(Resource::Nofile);
    if before != maximum {
        setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).map_err(|source| RaiseLimitError {
            before,
            wanted: maximum,
            source,
        })?;
    }
    Ok(RaisedLimit { before, now: maximum })
}

/// What to do about an error that means "a limit was reached"; `None` for any other error.
pub fn advise(errno: Errno) -> Option<&'static str> {
    match errno {
        Errno::MFILE => Some(
            "this process may open no further descriptor (EMFILE): raise its limit with ulimit -n or LimitNOFILE=, \
             or run fewer machines",
        ),
        Errno::NFILE => Some(
            "the host may open no further descriptor (ENFILE): raise it with sysctl fs.file-max, or run fewer machines",
        ),
        Errno::AGAIN => Some(
            "the limit of processes or threads was reached (EAGAIN): raise ulimit -u or TasksMax=, the cgroup's \
             pids.max, or sysctl kernel.pid_max and kernel.threads-max, or run fewer machines",
        ),
        Errno::NOMEM => Some(
            "memory is short (ENOMEM): free memory, raise the cgroup's limit or sysctl vm.max_map_count, or run fewer \
             or smaller machines",
        ),
        Errno::NOSPC => Some(
            "a limit of the kernel was reached (ENOSPC): raise sysctl user.max_pid_namespaces and its siblings, free \
             space on the file system, or run fewer machines",
        ),
        Errno::DQUOT => {
            Some("a quota was reached (EDQUOT): raise the user's quota or its sysctl, or run fewer machines")
        }
        Errno::TOOMANYREFS => Some(
            "too many descriptors are in flight between processes (ETOOMANYREFS): raise ulimit -n, or send fewer at once",
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_limit_error_has_advice_that_names_it() {
        for (errno, name) in [
            (Errno::MFILE, "EMFILE"),
            (Errno::NFILE, "ENFILE"),
            (Errno::AGAIN, "EAGAIN"),
            (Errno::NOMEM, "ENOMEM"),
            (Errno::NOSPC, "ENOSPC"),
            (Errno::DQUOT, "EDQUOT"),
            (Errno::TOOMANYREFS, "ETOOMANYREFS"),
        ] {
            assert!(advise(errno).unwrap().contains(name));
        }
        assert_eq!(advise(Errno::NOENT), None);
    }

    #[test]
    fn the_limits_of_this_host_can_be_read() {
        let limits = read();
        assert!(limits.descriptors.soft.is_none_or(|soft| soft >= 3));
        assert!(limits.host_pids.unwrap() > 1);
        assert!(limits.mappings_per_process.unwrap() > 1);
        assert!(limits.host_descriptors.is_some() && limits.host_descriptors_per_process.is_some());
    }
}
