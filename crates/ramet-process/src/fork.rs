//! fork() for the zygote: clone3 with a pidfd, and where wanted a pid namespace and a cgroup.
//!
//! Deliberately absent: threads, shared memory, exec. A child goes on in a copy of the caller's address space and must
//! end by [`crate::exit_now`]; it must not return into code that thinks it is the parent.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::process::Pid;

use crate::limits::advise;
use crate::sys::{self, CloneFailure, Cloned};

/// The namespaces that a child gets of its own; the others it shares with the caller.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Namespaces {
    /// A pid namespace: the child is process 1 in it and sees no other process. Needs CAP_SYS_ADMIN.
    pub pid: bool,
}

/// The caller's handle on a new process.
#[derive(Debug)]
pub struct Child {
    /// Its id in the caller's pid namespace, valid until it is reaped.
    pub pid: Pid,
    /// Its pidfd: polls readable when the process ends; never refers to another process.
    pub pidfd: OwnedFd,
}

/// Which side of a fork this is.
#[derive(Debug)]
pub enum Forked {
    /// The caller.
    Parent(Child),
    /// The new process.
    Child,
}

/// Why a process could not be forked. Nothing was created.
#[derive(Debug, thiserror::Error)]
pub enum ForkError {
    /// A fork copies only the calling thread: locks that others hold would stay locked in the child.
    #[error("Only a process with one thread may fork: this one has more; fork before starting threads")]
    MultiThreaded,
    /// A namespace or cgroup was refused.
    #[error("The kernel refused namespaces {namespaces:?} (cgroup given: {cgroup}): run as root, or without them")]
    Refused {
        /// The namespaces asked for.
        namespaces: Namespaces,
        /// Whether a cgroup was asked for.
        cgroup: bool,
        /// EPERM, or for the cgroup EACCES.
        source: Errno,
    },
    /// A limit on processes, descriptors or memory was reached.
    #[error("No further process can be made: {advice}")]
    LimitReached {
        /// What to do about it.
        advice: &'static str,
        /// EAGAIN, EMFILE, ENFILE, ENOMEM or ENOSPC.
        source: Errno,
    },
    /// Any other error of clone3.
    #[error("clone3 failed")]
    Clone(#[source] Errno),
}

/// Forks the calling process, which must have one thread.
///
/// `cgroup` is a directory of a version 2 hierarchy in which the child is born (clone3(2), CLONE_INTO_CGROUP); for
/// version 1 hierarchies let the child call [`join_cgroup`].
pub fn fork_process(namespaces: Namespaces, cgroup: Option<BorrowedFd<'_>>) -> Result<Forked, ForkError> {
    let mut flags = 0;
    if namespaces.pid {
        flags |= libc::CLONE_NEWPID as u64;
    }
    match sys::clone_process(flags, cgroup) {
        Ok(Cloned::Parent { pid, pidfd }) => Ok(Forked::Parent(Child { pid, pidfd })),
        Ok(Cloned::Child) => Ok(Forked::Child),
        Err(CloneFailure::MultiThreaded) => Err(ForkError::MultiThreaded),
        Err(CloneFailure::Kernel(source @ (Errno::PERM | Errno::ACCESS))) => {
            Err(ForkError::Refused { namespaces, cgroup: cgroup.is_some(), source })
        }
        Err(CloneFailure::Kernel(source)) => match advise(source) {
            Some(advice) => Err(ForkError::LimitReached { advice, source }),
            None => Err(ForkError::Clone(source)),
        },
    }
}

/// Moves the calling process into the cgroup whose opened `cgroup.procs` file is `procs` (version 1 or 2).
pub fn join_cgroup(procs: BorrowedFd<'_>) -> Result<(), Errno> {
    rustix::io::retry_on_intr(|| rustix::io::write(procs, b"0")).map(drop)
}
