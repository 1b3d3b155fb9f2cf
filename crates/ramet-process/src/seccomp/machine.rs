//! What a machine process may ask of Linux once its KVM objects and threads exist.
//!
//! It may work with the descriptors that it has, receive and pass on descriptors by its sockets, map and release
//! memory that cannot be executed, wait, and end. It may not name a file, make a process or thread, make or connect a
//! socket, trace, change rights or load code: none of these has a rule.

use rustix::process::Pid;

use super::policy::{Argument, Check, Policy, Rule};

/// What differs between the filters of machines.
#[derive(Debug, Clone, Copy)]
pub struct MachineFilterSpec<'a> {
    /// The process id of the machine in its own pid namespace (1 if it has one): it may signal its own threads only.
    pub own_pid: Pid,
    /// The request numbers of the ioctls that it may use, on whatever descriptor. The kernel reads 32 bits.
    pub ioctls: &'a [u32],
}

/// The policy of a machine process.
pub fn machine_policy(spec: &MachineFilterSpec<'_>) -> Policy {
    let policy = waiting_and_ending(Policy::new());
    let policy = memory(descriptors(policy));
    let ioctls = any_of(Argument::A1, spec.ioctls.iter().copied());
    let own_threads = vec![vec![Check::equal_u32(Argument::A0, spec.own_pid.as_raw_nonzero().get() as u32)]];
    let own_thread = vec![vec![Check::equal_u32(Argument::A0, 0)]];
    policy
        // The calling thread's own nice value and slice; without rights, never to a better one.
        .with(libc::SYS_sched_setattr, Rule::AllowIf(own_thread))
        // Only the requests in the list; KVM_RUN is one of them.
        .with(libc::SYS_ioctl, Rule::AllowIf(ioctls))
        // pthread_kill: kicks vCPU threads out of KVM_RUN; raise and abort.
        .with(libc::SYS_tgkill, Rule::AllowIf(own_threads))
}

/// Descriptors that exist, and few kinds of new ones.
fn descriptors(policy: Policy) -> Policy {
    // Sealing the memory that it hands out, and what the standard library asks of a descriptor. Not F_SETOWN (signals
    // to others) or F_SETLEASE.
    let fcntl = any_of(
        Argument::A1,
        [libc::F_ADD_SEALS, libc::F_GET_SEALS, libc::F_GETFL, libc::F_DUPFD_CLOEXEC, libc::F_GETFD, libc::F_SETFD]
            .map(|command| command as u32),
    );
    // Of a descriptor, not of a path: with AT_EMPTY_PATH. A path beside it would meet an empty root.
    let of_descriptor = |flags| {
        let empty = libc::AT_EMPTY_PATH as u64;
        Rule::AllowIf(vec![vec![Check::masked(flags, empty, empty)]])
    };
    policy
        // Eventfds (doorbells, interrupts), console, memfds, /proc/self/pagemap where PAGEMAP_SCAN is missing.
        .with(libc::SYS_read, Rule::Allow)
        .with(libc::SYS_write, Rule::Allow)
        .with(libc::SYS_readv, Rule::Allow)
        .with(libc::SYS_writev, Rule::Allow)
        .with(libc::SYS_pread64, Rule::Allow)
        .with(libc::SYS_preadv, Rule::Allow)
        .with(libc::SYS_pwrite64, Rule::Allow)
        .with(libc::SYS_lseek, Rule::Allow)
        // The socket to the supervisor, with descriptors.
        .with(libc::SYS_recvmsg, Rule::Allow)
        .with(libc::SYS_sendmsg, Rule::Allow)
        // Consoles' streams; without an address, which could name another process's socket.
        .with(libc::SYS_recvfrom, Rule::Allow)
        .with(libc::SYS_sendto, Rule::AllowIf(vec![vec![Check::masked(Argument::A4, u64::MAX, 0)]]))
        .with(libc::SYS_fcntl, Rule::AllowIf(fcntl))
        // The size of a memfd before it is mapped.
        .with(libc::SYS_fstat, Rule::Allow)
        .with(libc::SYS_newfstatat, of_descriptor(Argument::A3))
        .with(libc::SYS_statx, of_descriptor(Argument::A2))
        .with(libc::SYS_eventfd2, Rule::Allow)
        .with(libc::SYS_close, Rule::Allow)
}

/// Guest memory, deltas and the heap; never executable.
fn memory(policy: Policy) -> Policy {
    let not_executable = Rule::AllowIf(vec![vec![Check::clear(Argument::A2, libc::PROT_EXEC as u64)]]);
    // Neither MFD_EXEC nor MFD_HUGETLB.
    let memfd_flags = u64::from(libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | libc::MFD_NOEXEC_SEAL);
    policy
        // Guest memory over the registered slots (MAP_FIXED), clone pages, the heap.
        .with(libc::SYS_mmap, not_executable.clone())
        .with(libc::SYS_mprotect, not_executable)
        .with(libc::SYS_munmap, Rule::Allow)
        .with(libc::SYS_mremap, Rule::Allow)
        .with(libc::SYS_madvise, Rule::Allow)
        .with(libc::SYS_brk, Rule::Allow)
        // Deltas and large messages. The parameter is an unsigned int.
        .with(
            libc::SYS_memfd_create,
            Rule::AllowIf(vec![vec![Check::clear(Argument::A1, u64::from(u32::MAX) & !memfd_flags)]]),
        )
        .with(libc::SYS_ftruncate, Rule::Allow)
        .with(libc::SYS_fallocate, Rule::Allow)
}

/// Waiting, time, randomness, signals and the end.
fn waiting_and_ending(policy: Policy) -> Policy {
    policy
        // Event loops; which call is used depends on the library's version.
        .with(libc::SYS_epoll_create1, Rule::Allow)
        .with(libc::SYS_epoll_ctl, Rule::Allow)
        .with(libc::SYS_epoll_wait, Rule::Allow)
        .with(libc::SYS_epoll_pwait, Rule::Allow)
        .with(libc::SYS_epoll_pwait2, Rule::Allow)
        .with(libc::SYS_poll, Rule::Allow)
        .with(libc::SYS_ppoll, Rule::Allow)
        // Locks, condition variables, joining threads.
        .with(libc::SYS_futex, Rule::Allow)
        .with(libc::SYS_sched_yield, Rule::Allow)
        // An interrupted wait goes on after a stop signal.
        .with(libc::SYS_restart_syscall, Rule::Allow)
        // Where the vDSO cannot read the clock it makes the system call; sleeping.
        .with(libc::SYS_clock_gettime, Rule::Allow)
        .with(libc::SYS_clock_nanosleep, Rule::Allow)
        // virtio-rng, and the seeds of hash maps.
        .with(libc::SYS_getrandom, Rule::Allow)
        // Who am I: pthread_kill, raise.
        .with(libc::SYS_getpid, Rule::Allow)
        .with(libc::SYS_gettid, Rule::Allow)
        // The kick of a vCPU returns from its handler; masks around pthread_kill; abort; stacks for handlers are
        // released when a thread ends.
        .with(libc::SYS_rt_sigreturn, Rule::Allow)
        .with(libc::SYS_rt_sigprocmask, Rule::Allow)
        .with(libc::SYS_rt_sigaction, Rule::Allow)
        .with(libc::SYS_sigaltstack, Rule::Allow)
        // The end of a thread and of the process.
        .with(libc::SYS_exit, Rule::Allow)
        .with(libc::SYS_exit_group, Rule::Allow)
        // The C library tries clone3 before clone: it learns that there is none. clone then kills: no thread starts.
        .with(libc::SYS_clone3, Rule::Errno(libc::ENOSYS as u16))
}

fn any_of(argument: Argument, values: impl IntoIterator<Item = u32>) -> Vec<Vec<Check>> {
    values.into_iter().map(|value| vec![Check::equal_u32(argument, value)]).collect()
}
