//! How child processes end, and collecting them.

use std::fmt;
use std::os::fd::AsFd;

use rustix::io::{Errno, retry_on_intr};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, WaitOptions, WaitStatus};
use serde::{Deserialize, Serialize};

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Exit {
    /// It exited with this status (0 to 255).
    Code(i32),
    /// This signal killed it. SIGSYS (31): it made a system call that its filter forbids.
    Signal(i32),
}

impl Exit {
    /// Whether the process exited with status 0.
    pub fn is_success(self) -> bool {
        self == Exit::Code(0)
    }

    /// Whether the process was killed by its system call filter.
    pub fn is_filter_violation(self) -> bool {
        self == Exit::Signal(libc::SIGSYS)
    }

    fn from_wait(status: WaitStatus) -> Option<Self> {
        status.exit_status().map(Exit::Code).or_else(|| status.terminating_signal().map(Exit::Signal))
    }

    fn from_wait_id(status: &WaitIdStatus) -> Option<Self> {
        status.exit_status().map(Exit::Code).or_else(|| status.terminating_signal().map(Exit::Signal))
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Exit::Code(code) => write!(f, "exited with status {code}"),
            Exit::Signal(libc::SIGSYS) => write!(f, "was killed by SIGSYS: a system call that its filter forbids"),
            Exit::Signal(number) => match Signal::from_named_raw(number) {
                Some(signal) => write!(f, "was killed by signal {number} ({signal:?})"),
                None => write!(f, "was killed by signal {number}"),
            },
        }
    }
}

/// A child that ended and was collected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reaped {
    /// Its process id in the caller's pid namespace. The number may be used again from now on.
    pub pid: Pid,
    /// How it ended.
    pub exit: Exit,
}

/// Why children could not be collected.
#[derive(Debug, thiserror::Error)]
pub enum ReapError {
    /// The wait system call failed.
    #[error("Waiting for a child process failed")]
    Wait(#[source] Errno),
    /// The kernel reported a change of state that is not an end, which was not asked for.
    #[error("Waiting for child process {0} reported neither an exit nor a signal")]
    NotEnded(i32),
}

/// Collects all children that have ended, without waiting for any.
///
/// For the zygote only: in a process that also uses [`std::process::Command`] it would take that child's status away.
pub fn reap_children() -> Result<Vec<Reaped>, ReapError> {
    let mut reaped = Vec::new();
    loop {
        match retry_on_intr(|| rustix::process::wait(WaitOptions::NOHANG)) {
            Ok(Some((pid, status))) => {
                let raw = pid.as_raw_nonzero().get();
                let exit = Exit::from_wait(status).ok_or(ReapError::NotEnded(raw))?;
                reaped.push(Reaped { pid, exit });
            }
            Ok(None) | Err(Errno::CHILD) => return Ok(reaped),
            Err(errno) => return Err(ReapError::Wait(errno)),
        }
    }
}

/// Waits until the child behind `pidfd` ends, and collects it.
pub fn wait_for(pidfd: impl AsFd) -> Result<Exit, ReapError> {
    let pidfd = pidfd.as_fd();
    let status = retry_on_intr(|| rustix::process::waitid(WaitId::PidFd(pidfd), WaitIdOptions::EXITED))
        .map_err(ReapError::Wait)?;
    status.as_ref().and_then(Exit::from_wait_id).ok_or(ReapError::NotEnded(0))
}
