//! System call filters: what a machine process may ask of Linux.
//!
//! ```text
//! Policy (data: numbers, argument checks) --compile--> classic BPF: binary search --install--> all threads
//! ```
//!
//! A filter is compiled by this crate rather than by seccompiler because installing costs time in proportion to what
//! the kernel has to evaluate: it runs the filter once for every system call number of both ABIs to learn which are
//! always allowed. A search tree needs some 10 instructions for each where a linear chain needs hundreds. The tests
//! hold the compiler against seccompiler as an oracle; `tests/timings.rs` measures both.
//!
//! Deliberately absent: other architectures than x86-64, the x32 ABI, logging and tracing actions.

mod compile;
mod machine;
mod policy;

pub use compile::{CompileError, compile};
pub use machine::{MachineFilterSpec, machine_policy};
pub use policy::{Argument, Check, Policy, Rule, SystemCall, Verdict};

use rustix::thread::set_no_new_privs;
use seccompiler::BpfProgram;

/// A compiled filter, ready to be installed in any number of processes.
#[derive(Debug, Clone)]
pub struct MachineFilter {
    program: BpfProgram,
}

/// Why a filter could not be installed. No thread has it then.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// no_new_privs, without which a filter needs CAP_SYS_ADMIN.
    #[error("no_new_privs could not be set")]
    NoNewPrivileges(#[source] rustix::io::Errno),
    /// A thread has a filter of its own, which would have to be replaced.
    #[error("Thread {0} has another filter already, so the filter cannot be installed in all threads")]
    ThreadDiffers(i64),
    /// The kernel refused it.
    #[error("The kernel refused the system call filter: it needs CONFIG_SECCOMP_FILTER")]
    Kernel(#[source] seccompiler::Error),
}

impl MachineFilter {
    /// Compiles `policy`. Do it once, before processes are forked.
    pub fn build(policy: &Policy) -> Result<Self, CompileError> {
        Ok(Self { program: compile(policy)? })
    }

    /// The number of BPF instructions.
    pub fn instructions(&self) -> usize {
        self.program.len()
    }

    /// Installs the filter in every thread of the process, now and for good (SECCOMP_FILTER_FLAG_TSYNC).
    ///
    /// Whatever the policy forbids kills the process with SIGSYS. Every thread must have run its first line by then
    /// (let each say so): until there, the libraries set it up with system calls that a machine's policy forbids.
    pub fn install_on_all_threads(&self) -> Result<(), InstallError> {
        set_no_new_privs(true).map_err(InstallError::NoNewPrivileges)?;
        seccompiler::apply_filter_all_threads(&self.program).map_err(|error| match error {
            seccompiler::Error::ThreadSync(thread) => InstallError::ThreadDiffers(thread),
            error => InstallError::Kernel(error),
        })
    }
}
