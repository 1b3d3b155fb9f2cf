//! A vCPU: running it, kicking it, saving and restoring it.
//!
//! ```text
//!   born --restore--> ready --run--> exit --run--> ...        (all on the vCPU's own thread)
//!                                     |
//!                    kick -> Interrupted -> complete_pending -> save
//! ```
//! Call everything but [`Kicker`] from the thread that runs the vCPU: older kernels wait for an RCU grace period
//! when a vCPU changes its thread.

mod convert;
mod exit;
mod fresh;
mod kick;
mod msrs;
mod restore;
mod run_page;
mod save;

pub use convert::advance_tsc;
pub use exit::Exit;
pub use fresh::{BaselineError, FreshVcpu};
pub use kick::{InstallError, KickError, Kicker, install_kick_signal, kick_signal};
pub(crate) use msrs::candidates as msr_candidates;
pub use restore::RestoreError;
pub use save::SaveError;

use crate::{HostModel, raw};
use kick::KickState;
use kvm_ioctls::VcpuFd;
use ramet_state::Registers;
use run_page::RunPage;
use std::io;
use std::sync::Arc;
use std::thread::ThreadId;

/// Accesses that [`Vcpu::complete_pending`] serves before it gives up. One instruction makes few (a split access two
/// to four, a string instruction one per element until KVM's own limit of a page).
const MAX_PENDING_ACCESSES: u32 = 1 << 16;

/// Why a vCPU cannot run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// KVM_RUN failed.
    #[error("KVM_RUN of vCPU {vcpu} failed: {advice}")]
    Run {
        /// Which vCPU.
        vcpu: u8,
        /// What it may mean.
        advice: &'static str,
        #[source]
        #[expect(missing_docs, reason = "the errno")]
        source: io::Error,
    },
    /// KVM described an exit in a way that makes no sense.
    #[error("KVM_RUN of vCPU {vcpu} returned an exit that lies outside of its shared memory")]
    Malformed {
        /// Which vCPU.
        vcpu: u8,
    },
    /// [`Vcpu::complete_pending`] did not come to an end.
    #[error("vCPU {vcpu} still has a pending access after {MAX_PENDING_ACCESSES} of them were served")]
    Endless {
        /// Which vCPU.
        vcpu: u8,
    },
    /// Registers could not be read or written.
    #[error("{ioctl} of vCPU {vcpu} failed")]
    Registers {
        /// KVM_GET_REGS or KVM_SET_REGS.
        ioctl: &'static str,
        /// Which vCPU.
        vcpu: u8,
        #[source]
        #[expect(missing_docs, reason = "the errno")]
        source: io::Error,
    },
}

/// What this kernel offers for vCPUs; the same for all of a process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VcpuFeatures {
    pub(crate) xsave: raw::XsaveSize,
    pub(crate) sregs2: bool,
    pub(crate) sync_registers: bool,
}

/// A vCPU.
#[derive(Debug)]
pub struct Vcpu {
    number: u8,
    fd: VcpuFd,
    page: RunPage,
    kick: Arc<KickState>,
    bound_to: Option<ThreadId>,
    features: VcpuFeatures,
    /// What it was born with, as long as that is what it has.
    fresh: Option<FreshVcpu>,
    /// The registers to save, in KVM's form.
    msrs: msrs::MsrList,
    /// The access that the last exit asked for, until KVM_RUN completes it.
    pending: Pending,
    /// Whether the guest's TSC is its own, so that restoring sets it.
    tsc_is_virtual: bool,
}

/// An access that KVM completes when it is entered again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pending {
    Nothing,
    /// The instruction is before its end: made again if the state is taken now.
    Read,
    /// Served; only the instruction's end is open.
    Write,
}

impl Vcpu {
    pub(crate) fn new(
        number: u8,
        fd: VcpuFd,
        run_bytes: usize,
        features: VcpuFeatures,
        model: &HostModel,
    ) -> io::Result<Self> {
        let page = RunPage::map(&fd, run_bytes)?;
        let kick = Arc::new(KickState::new(page.immediate_exit()));
        Ok(Self {
            number,
            fd,
            page,
            kick,
            bound_to: None,
            features,
            fresh: None,
            msrs: msrs::MsrList::new(model.msrs()),
            pending: Pending::Nothing,
            tsc_is_virtual: model.tsc_is_virtual(),
        })
    }

    /// Its number in the machine, from 0; also its APIC id.
    pub fn number(&self) -> u8 {
        self.number
    }

    /// A handle that takes it out of the guest.
    pub fn kicker(&self) -> Kicker {
        Kicker(Arc::clone(&self.kick))
    }

    /// Takes back all kicks so far. Look for what the kicker wanted *after* this call: a kick that comes later
    /// interrupts the next run again.
    pub fn clear_kick(&self) {
        self.kick.clear();
    }

    /// Makes the first KVM_RUN, without entering the guest: it costs some 25 us once (the kernel starts a thread of
    /// the machine), which a blank machine can spend before it is asked for anything. Call it from the thread that
    /// will run the vCPU, and after the process has all its namespaces.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn prime(&mut self) -> Result<(), RunError> {
        self.complete_pending(&mut |_| {})
    }

    /// Runs the guest until it exits.
    ///
    /// # Errors
    /// [`RunError::Run`] for errors of KVM_RUN other than an interruption, which is [`Exit::Interrupted`].
    pub fn run(&mut self) -> Result<Exit<'_>, RunError> {
        self.fresh = None;
        self.enter()
    }

    /// Finishes an access that the last exit left half done, so that the registers are consistent: KVM_RUN without
    /// entering the guest, until nothing is left. A split access makes further exits: `serve` gets them. It also
    /// gets an exit that ends the machine, if that is what the instruction comes to.
    ///
    /// # Errors
    /// As [`Self::run`]; [`RunError::Endless`] if accesses do not end.
    pub fn complete_pending(&mut self, serve: &mut dyn FnMut(Exit<'_>)) -> Result<(), RunError> {
        self.kick.force_exit();
        let result = self.drain_accesses(serve);
        self.kick.unforce_exit();
        result
    }

    fn drain_accesses(&mut self, serve: &mut dyn FnMut(Exit<'_>)) -> Result<(), RunError> {
        for _ in 0..MAX_PENDING_ACCESSES {
            match self.enter()? {
                Exit::Interrupted => return Ok(()),
                exit => serve(exit),
            }
        }
        Err(RunError::Endless { vcpu: self.number })
    }

    /// Changes general-purpose registers; complete pending accesses first, or they overwrite the result.
    ///
    /// # Errors
    /// [`RunError::Registers`].
    pub fn edit_registers(&mut self, edit: impl FnOnce(&mut Registers)) -> Result<(), RunError> {
        let vcpu = self.number;
        let failed = |ioctl| move |error: kvm_ioctls::Error| RunError::Registers { ioctl, vcpu, source: error.into() };
        let mut registers = convert::registers_from_kvm(&self.fd.get_regs().map_err(failed("KVM_GET_REGS"))?);
        edit(&mut registers);
        self.fd.set_regs(&convert::registers_to_kvm(&registers)).map_err(failed("KVM_SET_REGS"))
    }

    /// Tells the guest's watchdogs that it was stopped (KVM_KVMCLOCK_CTRL). False if the guest uses no kvm-clock.
    ///
    /// # Errors
    /// The errno, where it is not that.
    pub fn kvmclock_ctrl(&self) -> io::Result<bool> {
        match self.fd.kvmclock_ctrl() {
            Ok(()) => Ok(true),
            Err(error) if error.errno() == libc::EINVAL => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// The guest's TSC frequency in kHz.
    ///
    /// # Errors
    /// The errno of KVM_GET_TSC_KHZ; the host's TSC is unstable.
    pub fn tsc_khz(&self) -> io::Result<u32> {
        self.fd.get_tsc_khz().map_err(io::Error::from)
    }

    /// What the guest reads as its TSC is the host's plus this, modulo 2^64: 0 where the TSC is not virtual. `None` if
    /// the kernel does not tell (Linux before 5.16).
    ///
    /// # Errors
    /// The errno of KVM_GET_DEVICE_ATTR.
    pub fn tsc_offset(&self) -> io::Result<Option<u64>> {
        if !self.tsc_is_virtual {
            return Ok(Some(0));
        }
        match raw::tsc_offset(&self.fd) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENXIO | libc::ENOTTY | libc::EINVAL)) => Ok(None),
            offset => offset.map(Some),
        }
    }

    fn enter(&mut self) -> Result<Exit<'_>, RunError> {
        let thread = std::thread::current().id();
        if self.bound_to != Some(thread) {
            self.kick.bind_to_this_thread();
            self.bound_to = Some(thread);
        }
        let vcpu = self.number;
        self.pending = Pending::Nothing;
        if let Err(error) = raw::run(&self.fd) {
            return match error.raw_os_error() {
                Some(libc::EINTR | libc::EAGAIN) => Ok(Exit::Interrupted),
                Some(libc::EFAULT | libc::EHWPOISON) => Ok(Exit::MemoryFault { address: self.page.memory_fault() }),
                errno => Err(RunError::Run { vcpu, advice: run_advice(errno), source: error }),
            };
        }
        let exit = self.page.exit().ok_or(RunError::Malformed { vcpu })?;
        self.pending = match exit {
            Exit::PortRead { .. } | Exit::MmioRead { .. } => Pending::Read,
            Exit::PortWrite { .. } | Exit::MmioWrite { .. } => Pending::Write,
            _ => Pending::Nothing,
        };
        Ok(exit)
    }
}

impl Drop for Vcpu {
    fn drop(&mut self) {
        self.kick.unbind();
    }
}

fn run_advice(errno: Option<i32>) -> &'static str {
    match errno {
        Some(libc::EIO) => "a vCPU cannot be used by a forked child, only by the process that created it",
        Some(libc::EINVAL) => "the registers are not a state that a processor can be in",
        Some(libc::ENOMEM) => "the kernel is out of memory",
        _ => "the kernel refused to enter the guest",
    }
}
