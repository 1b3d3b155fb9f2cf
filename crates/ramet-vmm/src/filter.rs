//! The system call filter of a machine's process.
//!
//! Compiled once, in the zygote; put on when the machine's KVM objects and threads exist, so that it needs neither
//! creation ioctls nor new threads.

use ramet_kvm::RUNTIME_IOCTLS;
use ramet_memory::TRACKER_IOCTLS;
use ramet_process::seccomp::{CompileError, InstallError, MachineFilter, MachineFilterSpec, machine_policy};
use rustix::process::{Pid, getpid};

/// A filter, or the knowledge that each process needs one of its own.
pub(crate) enum Filter {
    /// All machines are process 1 of their pid namespaces.
    Common(MachineFilter),
    /// There are no pid namespaces: the filter names the process.
    Own,
}

/// Why there is no filter.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FilterError {
    #[error("The system call filter cannot be compiled")]
    Compile(#[source] CompileError),
    #[error("The system call filter cannot be installed")]
    Install(#[source] InstallError),
}

fn compile(own_pid: Pid) -> Result<MachineFilter, FilterError> {
    let ioctls: Vec<u32> = RUNTIME_IOCTLS.iter().chain(TRACKER_IOCTLS).copied().collect();
    let policy = machine_policy(&MachineFilterSpec { own_pid, ioctls: &ioctls });
    MachineFilter::build(&policy).map_err(FilterError::Compile)
}

impl Filter {
    /// In the zygote.
    pub(crate) fn prepare(pid_namespaces: bool) -> Result<Self, FilterError> {
        // The library finds the vDSO at the first use of a clock, by a system call that the filter forbids; its
        // children inherit what it has found.
        let _found = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        if pid_namespaces { compile(Pid::INIT).map(Self::Common) } else { Ok(Self::Own) }
    }

    /// In a machine's process, once all of its threads exist.
    pub(crate) fn install(&self) -> Result<(), FilterError> {
        match self {
            Self::Common(filter) => filter.install_on_all_threads().map_err(FilterError::Install),
            Self::Own => compile(getpid())?.install_on_all_threads().map_err(FilterError::Install),
        }
    }
}
