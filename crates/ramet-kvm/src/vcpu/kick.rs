//! Getting a vCPU out of KVM_RUN.
//!
//! ```text
//!   kicker                         vCPU thread
//!   kicked = 1                     thread = gettid
//!   immediate_exit = 1             KVM_RUN: immediate_exit? -> EINTR
//!   signal to `thread` if known             signal pending? -> EINTR
//! ```
//! Whatever the interleaving, the vCPU returns: the flag is set before the signal is sent, and the thread is known
//! before KVM reads the flag. The flag stays until [`super::Vcpu::clear_kick`], so a kick cannot be lost between two
//! runs.
#![allow(unsafe_code)]

use super::run_page::ImmediateExit;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::SeqCst};

/// A kick could not be delivered.
#[derive(Debug, thiserror::Error)]
#[error("Cannot signal vCPU thread {thread} with signal {signal}")]
pub struct KickError {
    /// Its thread id.
    thread: i32,
    /// The signal.
    signal: i32,
    #[source]
    source: io::Error,
}

/// The kick signal's handler could not be installed.
#[derive(Debug, thiserror::Error)]
#[error("Cannot install the handler of signal {signal}, which takes vCPUs out of the guest")]
pub struct InstallError {
    /// The signal.
    signal: i32,
    #[source]
    source: io::Error,
}

/// What a vCPU and its kickers share.
#[derive(Debug)]
pub(crate) struct KickState {
    immediate_exit: ImmediateExit,
    kicked: AtomicBool,
    thread: AtomicI32,
}

impl KickState {
    pub(crate) fn new(immediate_exit: ImmediateExit) -> Self {
        Self { immediate_exit, kicked: AtomicBool::new(false), thread: AtomicI32::new(0) }
    }

    /// The calling thread is the one that runs the vCPU from now on.
    pub(crate) fn bind_to_this_thread(&self) {
        // SAFETY: gettid takes no argument and cannot fail.
        self.thread.store(unsafe { libc::gettid() }, SeqCst);
    }

    /// Forgets the thread, before it ends.
    pub(crate) fn unbind(&self) {
        self.thread.store(0, SeqCst);
    }

    /// Makes the next KVM_RUN return at once.
    pub(crate) fn force_exit(&self) {
        self.immediate_exit.set(true);
    }

    /// Undoes [`Self::force_exit`], but not a kick: one that comes meanwhile has set `kicked` before the flag.
    pub(crate) fn unforce_exit(&self) {
        self.immediate_exit.set(false);
        if self.kicked.load(SeqCst) {
            self.immediate_exit.set(true);
        }
    }

    pub(crate) fn clear(&self) {
        self.kicked.store(false, SeqCst);
        self.unforce_exit();
    }
}

/// Takes a vCPU out of KVM_RUN, from any thread.
#[derive(Clone, Debug)]
pub struct Kicker(pub(crate) Arc<KickState>);

impl Kicker {
    /// Makes the vCPU's KVM_RUN, the current or the next, return [`super::Exit::Interrupted`], and every later one
    /// until [`super::Vcpu::clear_kick`]. Needs [`install_kick_signal`] once in the process.
    ///
    /// # Errors
    /// [`KickError`] if the signal cannot be sent (a seccomp filter without tgkill).
    pub fn kick(&self) -> Result<(), KickError> {
        self.0.kicked.store(true, SeqCst);
        self.0.immediate_exit.set(true);
        let thread = self.0.thread.load(SeqCst);
        if thread == 0 {
            return Ok(());
        }
        let signal = kick_signal();
        let process = std::process::id().cast_signed();
        // SAFETY: tgkill only takes integers; a thread id that was given to another thread of this process reaches a
        // handler that does nothing.
        if unsafe { libc::syscall(libc::SYS_tgkill, process, thread, signal) } == 0 {
            return Ok(());
        }
        let source = io::Error::last_os_error();
        // The thread has ended: no vCPU of it is in the guest.
        if source.raw_os_error() == Some(libc::ESRCH) { Ok(()) } else { Err(KickError { thread, signal, source }) }
    }
}

/// The signal of kicks; the other real-time signals are left to the rest of the process.
pub fn kick_signal() -> i32 {
    libc::SIGRTMIN() + 4
}

extern "C" fn do_nothing(_: libc::c_int) {}

/// Installs the (empty) handler of the kick signal and unblocks it in the calling thread and those it starts later.
///
/// # Errors
/// [`InstallError`] with the errno of sigaction or pthread_sigmask.
pub fn install_kick_signal() -> Result<(), InstallError> {
    let signal = kick_signal();
    // SAFETY: zero is a valid `sigaction` and `sigset_t`; the handler is async-signal-safe since it does nothing;
    // all pointers are to locals. Without SA_RESTART, interrupted system calls return EINTR, which Rust's standard
    // library retries.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = do_nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
        libc::sigemptyset(&raw mut action.sa_mask);
        if libc::sigaction(signal, &raw const action, std::ptr::null_mut()) != 0 {
            return Err(InstallError { signal, source: io::Error::last_os_error() });
        }
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, signal);
        match libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut()) {
            0 => Ok(()),
            errno => Err(InstallError { signal, source: io::Error::from_raw_os_error(errno) }),
        }
    }
}
