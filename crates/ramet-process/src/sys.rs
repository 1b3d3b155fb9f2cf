//! The unsafe layer: the system calls that neither the standard library nor rustix offers safely.
//!
//! Every function here is safe to call; the reason is at its unsafe block.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::raw::{c_int, c_long};
use std::{mem, ptr};

use rustix::io::Errno;
use rustix::process::{Pid, Signal};

type Result<T> = std::result::Result<T, Errno>;

fn check(result: c_long) -> Result<c_long> {
    if result < 0 { Err(last_errno()) } else { Ok(result) }
}

fn last_errno() -> Errno {
    let raw = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL);
    Errno::from_raw_os_error(raw)
}

/// linux/sched.h. libc's constant is an int for glibc targets, in which the bit does not fit: it is 0 there.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// What clone3 returned on each side.
pub(crate) enum Cloned {
    Parent { pid: Pid, pidfd: OwnedFd },
    Child,
}

/// Whether the calling process has exactly one thread.
///
/// unshare(2): CLONE_THREAD has no effect in a process with one thread and is refused with EINVAL in any other. It
/// needs no /proc, which a zygote with an empty root does not have.
pub(crate) fn is_single_threaded() -> Result<bool> {
    // SAFETY: CLONE_THREAD alone changes nothing: it either succeeds as a no-op or fails.
    match check(c_long::from(unsafe { libc::unshare(libc::CLONE_THREAD) })) {
        Ok(_) => Ok(true),
        Err(Errno::INVAL) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Why [`clone_process`] made no process.
pub(crate) enum CloneFailure {
    MultiThreaded,
    Kernel(Errno),
}

impl From<Errno> for CloneFailure {
    fn from(errno: Errno) -> Self {
        Self::Kernel(errno)
    }
}

/// clone3 with the semantics of fork(): no shared memory, SIGCHLD at the end.
pub(crate) fn clone_process(flags: u64, cgroup: Option<BorrowedFd<'_>>) -> std::result::Result<Cloned, CloneFailure> {
    if !is_single_threaded()? {
        return Err(CloneFailure::MultiThreaded);
    }
    let mut pidfd: RawFd = -1;
    // SAFETY: all-zero is a valid clone_args: no flags, no stack, no thread-local storage.
    let mut arguments: libc::clone_args = unsafe { mem::zeroed() };
    arguments.flags = flags | libc::CLONE_PIDFD as u64;
    arguments.pidfd = ptr::from_mut(&mut pidfd) as u64;
    arguments.exit_signal = libc::SIGCHLD as u64;
    if let Some(cgroup) = cgroup {
        arguments.flags |= CLONE_INTO_CGROUP;
        arguments.cgroup = cgroup.as_raw_fd() as u64;
    }
    // The C library keeps the thread's id at this address; its own fork() renews it in the child in the same way.
    if let Ok(Some(address)) = rustix::thread::get_clear_child_tid_address() {
        arguments.flags |= (libc::CLONE_CHILD_SETTID | libc::CLONE_CHILD_CLEARTID) as u64;
        arguments.child_tid = address.as_ptr() as u64;
    }
    // SAFETY: neither CLONE_VM nor a stack is given, so the child goes on in a copy of this address space, as after
    // fork(). The process has one thread (checked above), so no lock is held by a thread that the child lacks. The
    // pointers in `arguments` are valid for the call, and `child_tid` is the address that the kernel already uses.
    let pid = check(unsafe {
        libc::syscall(libc::SYS_clone3, ptr::from_mut(&mut arguments), mem::size_of::<libc::clone_args>())
    })?;
    match Pid::from_raw(pid as i32) {
        None => Ok(Cloned::Child),
        // SAFETY: clone3 succeeded in the parent, so it stored a new descriptor, which nobody else owns.
        Some(pid) => Ok(Cloned::Parent { pid, pidfd: unsafe { OwnedFd::from_raw_fd(pidfd) } }),
    }
}

/// struct sched_attr of sched_setattr(2), as long as it was in its first version.
#[repr(C)]
#[derive(Default)]
struct SchedulingAttributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime_ns: u64,
    deadline_ns: u64,
    period_ns: u64,
}

/// Sets the calling thread's nice value and the slice that it asks the fair scheduler for; 0 for the system's own. A
/// short slice lets a thread that wakes run soon and not longer (Linux 6.12; ignored before).
pub fn set_nice_and_slice(nice: i32, slice_ns: u64) -> Result<()> {
    let attributes = SchedulingAttributes {
        size: size_of::<SchedulingAttributes>() as u32,
        policy: libc::SCHED_OTHER as u32,
        nice,
        runtime_ns: slice_ns,
        ..SchedulingAttributes::default()
    };
    // SAFETY: the kernel reads `size` bytes of a value that lives during the call.
    match unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) } {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

/// Lets the C library's allocator use one arena for all threads, from now on and in children.
///
/// With several it opens a file of /proc when it gives memory back, which a machine's filter forbids.
pub fn use_one_arena() {
    // SAFETY: mallopt takes integers; the process has one thread, so no allocation is under way.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
}

/// Ends the process at once, without running exit handlers or destructors inherited from the parent.
///
/// For the children of [`crate::fork_process`]: what the parent registered to run at its end is not theirs to run.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: _exit has no preconditions.
    unsafe { libc::_exit(code) }
}

/// Closes a descriptor.
///
/// Memory safety does not depend on it, I/O safety does: the caller must own what it closes, which the confinement
/// of a fresh child documents.
pub(crate) fn close_one(descriptor: RawFd) -> Result<()> {
    let descriptor = u32::try_from(descriptor).map_err(|_| Errno::BADF)?;
    close_range(descriptor, descriptor)
}

/// Closes every descriptor above 2 but `keep`; see [`close_one`].
pub(crate) fn close_all_except(keep: impl IntoIterator<Item = RawFd>) -> Result<()> {
    let mut keep: Vec<u32> = keep.into_iter().filter_map(|fd| u32::try_from(fd).ok()).collect();
    keep.sort_unstable();
    let mut first = 3;
    for fd in keep {
        if fd > first {
            close_range(first, fd - 1)?;
        }
        first = first.max(fd + 1);
    }
    close_range(first, u32::MAX)
}

fn close_range(first: u32, last: u32) -> Result<()> {
    // SAFETY: closing descriptors does not touch memory.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) }).map(drop)
}

/// Makes `target` refer to the open file description of `source` (dup2). `target` must be 0, 1 or 2.
pub(crate) fn replace_standard_descriptor(source: BorrowedFd<'_>, target: RawFd) -> Result<()> {
    debug_assert!((0..=2).contains(&target));
    // SAFETY: dup2 does not touch memory; the standard descriptors have no owner that could close them.
    check(c_long::from(unsafe { libc::dup2(source.as_raw_fd(), target) })).map(drop)
}

/// The kind of object that [`kcmp`] compares.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Compared {
    /// Open file descriptions, by (pid, descriptor).
    File(RawFd, RawFd),
    /// Address spaces.
    AddressSpace,
}

/// The kernel's order of two processes' objects; `Equal` means that they are the same object.
pub(crate) fn kcmp(first: Pid, second: Pid, compared: Compared) -> Result<std::cmp::Ordering> {
    const KCMP_FILE: c_int = 0;
    const KCMP_VM: c_int = 1;
    let (kind, a, b) = match compared {
        Compared::File(a, b) => (KCMP_FILE, a, b),
        Compared::AddressSpace => (KCMP_VM, 0, 0),
    };
    let (first, second) = (first.as_raw_nonzero().get(), second.as_raw_nonzero().get());
    // SAFETY: kcmp takes numbers only and changes nothing.
    match check(unsafe { libc::syscall(libc::SYS_kcmp, first, second, kind, a as libc::c_ulong, b as libc::c_ulong) })?
    {
        0 => Ok(std::cmp::Ordering::Equal),
        1 => Ok(std::cmp::Ordering::Less),
        2 => Ok(std::cmp::Ordering::Greater),
        _ => Err(Errno::INVAL),
    }
}

/// A set of signals in the C library's form.
#[derive(Clone, Copy)]
pub(crate) struct SignalSet(libc::sigset_t);

impl SignalSet {
    pub(crate) fn new(signals: &[Signal]) -> Self {
        // SAFETY: sigemptyset initialises the zeroed set; sigaddset gets a valid set and a number that `Signal`
        // guarantees to be a signal's.
        unsafe {
            let mut set = mem::zeroed();
            libc::sigemptyset(&mut set);
            for signal in signals {
                libc::sigaddset(&mut set, signal.as_raw());
            }
            Self(set)
        }
    }

    pub(crate) fn contains(&self, signal: Signal) -> bool {
        // SAFETY: the set was initialised by `new` or by the kernel.
        unsafe { libc::sigismember(&self.0, signal.as_raw()) == 1 }
    }
}

/// How [`change_signal_mask`] combines a set with the thread's mask.
#[derive(Clone, Copy)]
pub(crate) enum MaskChange {
    Block,
    Unblock,
    Set,
}

/// Changes the calling thread's signal mask and returns the previous one.
pub(crate) fn change_signal_mask(change: MaskChange, set: &SignalSet) -> Result<SignalSet> {
    let how = match change {
        MaskChange::Block => libc::SIG_BLOCK,
        MaskChange::Unblock => libc::SIG_UNBLOCK,
        MaskChange::Set => libc::SIG_SETMASK,
    };
    let mut previous = SignalSet::new(&[]);
    // SAFETY: both pointers are to initialised sets that live through the call.
    match unsafe { libc::pthread_sigmask(how, &set.0, &mut previous.0) } {
        0 => Ok(previous),
        raw => Err(Errno::from_raw_os_error(raw)),
    }
}

/// A descriptor from which the signals of `set` are read; they must be blocked. Non-blocking and close-on-exec.
pub(crate) fn signal_descriptor(set: &SignalSet) -> Result<OwnedFd> {
    // SAFETY: the set is initialised; -1 asks for a new descriptor.
    let fd = check(c_long::from(unsafe { libc::signalfd(-1, &set.0, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) }))?;
    // SAFETY: signalfd returned a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

extern "C" fn do_nothing(_: c_int) {}

/// Gives `signal` a handler that does nothing and interrupts system calls (no SA_RESTART).
pub(crate) fn install_interrupting_handler(signal: Signal) -> Result<()> {
    // SAFETY: the handler touches nothing, so it may run at any time; the action is fully initialised.
    let result = unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = do_nothing as extern "C" fn(c_int) as usize;
        libc::sigemptyset(&mut action.sa_mask);
        libc::sigaction(signal.as_raw(), &action, ptr::null_mut())
    };
    check(c_long::from(result)).map(drop)
}

/// Moves the calling thread into new namespaces. For processes with one thread, which callers check.
pub(crate) fn unshare(flags: rustix::thread::UnshareFlags) -> Result<()> {
    debug_assert!(!flags.contains(rustix::thread::UnshareFlags::FILES));
    // SAFETY: the flags used here are namespaces; none of them unshares the descriptor table, which is what could
    // break the ownership of descriptors.
    unsafe { rustix::thread::unshare_unsafe(flags) }
}
