//! Signals and pidfds: masks that undo themselves, signals as a readable descriptor, ends of processes.

use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, read, retry_on_intr};
use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};

use crate::sys::{self, MaskChange, SignalSet};

/// Signals blocked or unblocked for the calling thread; dropping it restores the mask that was in force before.
#[must_use = "the mask is restored when the guard is dropped"]
pub struct MaskGuard {
    previous: SignalSet,
    /// A mask belongs to a thread: the guard stays on it.
    not_send: PhantomData<*const ()>,
}

impl MaskGuard {
    /// Blocks `signals` for the calling thread and the threads that it starts.
    pub fn block(signals: &[Signal]) -> Result<Self, Errno> {
        Self::change(MaskChange::Block, signals)
    }

    /// Lets `signals` through.
    pub fn unblock(signals: &[Signal]) -> Result<Self, Errno> {
        Self::change(MaskChange::Unblock, signals)
    }

    fn change(change: MaskChange, signals: &[Signal]) -> Result<Self, Errno> {
        let previous = sys::change_signal_mask(change, &SignalSet::new(signals))?;
        Ok(Self { previous, not_send: PhantomData })
    }

    /// Leaves the mask as it is, for good.
    pub fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for MaskGuard {
    fn drop(&mut self) {
        let restored = sys::change_signal_mask(MaskChange::Set, &self.previous);
        debug_assert!(restored.is_ok(), "setting a valid signal mask cannot fail");
    }
}

/// Whether `signal` is blocked for the calling thread.
pub fn is_blocked(signal: Signal) -> Result<bool, Errno> {
    Ok(sys::change_signal_mask(MaskChange::Block, &SignalSet::new(&[]))?.contains(signal))
}

/// Makes `signal` interrupt system calls of the thread that it is sent to, and do nothing else.
///
/// For kicking vCPU threads out of KVM_RUN. The handler holds for the whole process.
pub fn make_interrupting(signal: Signal) -> Result<(), Errno> {
    sys::install_interrupting_handler(signal)
}

/// A signal read from a [`SignalFd`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SignalReceived {
    /// Its number.
    pub number: i32,
    /// The process that sent it or, for SIGCHLD, the child.
    pub pid: Option<Pid>,
}

/// Signals as a descriptor that polls readable when one is pending. Close-on-exec, non-blocking.
#[derive(Debug)]
pub struct SignalFd(OwnedFd);

impl SignalFd {
    /// A descriptor for `signals`, which must be blocked in every thread ([`MaskGuard::block`]).
    pub fn new(signals: &[Signal]) -> Result<Self, Errno> {
        sys::signal_descriptor(&SignalSet::new(signals)).map(Self)
    }

    /// The next pending signal, if any. One SIGCHLD may stand for several children: reap all.
    pub fn next_pending(&self) -> Result<Option<SignalReceived>, Errno> {
        // struct signalfd_siginfo (signalfd(2)): ssi_signo at 0, ssi_pid at 12; 128 bytes in all.
        let mut info = [0u8; 128];
        match retry_on_intr(|| read(&self.0, &mut info)) {
            Ok(128) => {}
            Ok(_) => return Err(Errno::IO),
            Err(Errno::AGAIN) => return Ok(None),
            Err(errno) => return Err(errno),
        }
        let word = |at: usize| i32::from_ne_bytes([info[at], info[at + 1], info[at + 2], info[at + 3]]);
        let pid = word(12);
        Ok(Some(SignalReceived { number: word(0), pid: if pid > 0 { Pid::from_raw(pid) } else { None } }))
    }
}

impl AsFd for SignalFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A pidfd of the calling process, for its children to watch it.
pub fn own_pidfd() -> Result<OwnedFd, Errno> {
    pidfd_open(getpid(), PidfdFlags::empty())
}

/// Sends `signal` to the process behind `pidfd`; ESRCH when it has ended and was collected.
pub fn send_signal(pidfd: impl AsFd, signal: Signal) -> Result<(), Errno> {
    pidfd_send_signal(pidfd.as_fd(), signal)
}

/// Whether the process behind `pidfd` has ended.
pub fn has_ended(pidfd: impl AsFd) -> Result<bool, Errno> {
    wait_ended(pidfd, Some(Duration::ZERO))
}

/// Waits until the process behind `pidfd` has ended, at most `timeout`; false when the time ran out first.
///
/// It collects nothing: see [`crate::wait_for`].
pub fn wait_ended(pidfd: impl AsFd, timeout: Option<Duration>) -> Result<bool, Errno> {
    let deadline = timeout.map(|timeout| std::time::Instant::now() + timeout);
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(std::time::Instant::now()));
        let left = left.map(|left| Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(left.subsec_nanos()),
        });
        let mut fds = [PollFd::from_borrowed_fd(pidfd.as_fd(), PollFlags::IN)];
        match poll(&mut fds, left.as_ref()) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guard_restores_the_mask() {
        let before = is_blocked(Signal::USR1).unwrap();
        let blocked = MaskGuard::block(&[Signal::USR1]).unwrap();
        assert!(is_blocked(Signal::USR1).unwrap());
        let unblocked = MaskGuard::unblock(&[Signal::USR1]).unwrap();
        assert!(!is_blocked(Signal::USR1).unwrap());
        drop(unblocked);
        assert!(is_blocked(Signal::USR1).unwrap());
        drop(blocked);
        assert_eq!(is_blocked(Signal::USR1).unwrap(), before);
    }

    #[test]
    fn a_running_process_has_not_ended() {
        assert!(!has_ended(own_pidfd().unwrap()).unwrap());
        assert!(!wait_ended(own_pidfd().unwrap(), Some(Duration::from_millis(2))).unwrap());
    }
}
