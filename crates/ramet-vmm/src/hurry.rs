//! Births go before what guests compute.
//!
//! A fork is waited for, and its work is short; a guest may compute for ever. Between processes of one priority the
//! scheduler lets a newborn queue behind the guests (some milliseconds, where all processors are busy). So the zygote
//! and its newborns run at a better priority until the machine is released, where the host grants it.

use rustix::io::Errno;
use rustix::process::{getpriority_process, setpriority_process};

/// By how much the nice value is lower.
const ADVANCE: i32 = 10;

/// A better priority, and the way back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hurry {
    ordinary: i32,
}

impl Hurry {
    /// Takes the better priority; `None` where the host does not grant it (it takes CAP_SYS_NICE or RLIMIT_NICE).
    pub(crate) fn begin() -> Option<Self> {
        let ordinary = getpriority_process(None).ok()?;
        setpriority_process(None, ordinary.saturating_sub(ADVANCE)).ok()?;
        Some(Self { ordinary })
    }

    /// The nice value of machines that run.
    pub(crate) fn ordinary(self) -> i32 {
        self.ordinary
    }

    /// The calling thread goes back to the ordinary priority.
    pub(crate) fn end(self) -> Result<(), Errno> {
        setpriority_process(None, self.ordinary)
    }
}
