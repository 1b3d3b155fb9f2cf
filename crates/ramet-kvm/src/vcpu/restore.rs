//! Putting a saved state into a vCPU.
//!
//! Order, with its reasons: MP_STATE (a start-up wait would keep KVM_RUN from loading registers); REGS, SREGS,
//! EVENTS in that order (setting REGS drops a pending exception; SREGS holds the APIC's base and mode, which the
//! local APIC's page depends on); XCRS before XSAVE; the local APIC; MSRs with the TSC first and the TSC deadline last
//! (it counts only once the APIC's timer is in that mode); DEBUGREGS.
//!
//! What equals a newborn vCPU's is not set: an ioctl costs some 5 us on a software KVM.

use super::fresh::FreshVcpu;
use super::save::SYNCED;
use super::{BaselineError, Exit, Pending, RunError, Vcpu, convert, msrs};
use crate::raw::{self, Plain};
use kvm_bindings::{kvm_debugregs, kvm_lapic_state, kvm_mp_state, kvm_regs, kvm_sregs, kvm_sync_regs, kvm_vcpu_events};
use ramet_state::{Msr, VcpuState};
use std::io;

/// Why a state cannot be put into a vCPU.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// A class of bytes has the wrong length.
    #[error(
        "Class {class} of vCPU {vcpu} has {found} bytes where this host has {expected}: the state is damaged or from \
         a host with other features"
    )]
    Length {
        /// The class.
        class: &'static str,
        /// Which vCPU.
        vcpu: u8,
        /// Bytes in the state.
        found: usize,
        /// Bytes wanted.
        expected: usize,
    },
    /// More entries than a vCPU can have.
    #[error("The state of vCPU {vcpu} has {found} {class}: at most {maximum} can be")]
    Count {
        /// The class.
        class: &'static str,
        /// Which vCPU.
        vcpu: u8,
        /// Entries in the state.
        found: usize,
        /// Most entries.
        maximum: usize,
    },
    /// KVM refused a class.
    #[error("{ioctl} of vCPU {vcpu} failed: {advice}")]
    Ioctl {
        /// The ioctl.
        ioctl: &'static str,
        /// Which vCPU.
        vcpu: u8,
        /// What it may mean.
        advice: &'static str,
        #[source]
        #[expect(missing_docs, reason = "the errno")]
        source: io::Error,
    },
    /// KVM refused a model-specific register.
    #[error(
        "This host refuses model-specific register {index:#x} = {value:#x} of vCPU {vcpu}: the state is damaged or \
         from a host with other features"
    )]
    Msr {
        /// Which vCPU.
        vcpu: u8,
        /// The register.
        index: u32,
        /// Its value in the state.
        value: u64,
    },
    /// The vCPU has run, and what it has now cannot be read.
    #[error("The current state of vCPU {vcpu} cannot be read to compare with")]
    Baseline {
        /// Which vCPU.
        vcpu: u8,
        #[source]
        #[expect(missing_docs, reason = "the cause")]
        source: BaselineError,
    },
    /// The vCPU is in the middle of an exit.
    #[error("vCPU {vcpu} has an access that is half done: a state can only be put into one that has none")]
    PendingAccess {
        /// Which vCPU.
        vcpu: u8,
    },
    /// KVM_RUN failed when it was to load registers.
    #[error("The registers of vCPU {vcpu} cannot be loaded")]
    Run {
        /// Which vCPU.
        vcpu: u8,
        #[source]
        #[expect(missing_docs, reason = "the cause")]
        source: RunError,
    },
}

/// The byte classes of a state, checked and in KVM's form; `None` for "as KVM creates it".
struct Checked {
    core: kvm_sync_regs,
    has_events: bool,
    pdptrs: Option<[u64; 4]>,
    local_apic: Option<kvm_lapic_state>,
    debug_registers: Option<kvm_debugregs>,
}

impl Vcpu {
    /// Makes this vCPU what `state` says.
    ///
    /// # Errors
    /// [`RestoreError`] names the class or register and its value. The vCPU is then in no defined state: drop the
    /// machine.
    pub fn restore(&mut self, state: &VcpuState) -> Result<(), RestoreError> {
        let checked = self.check(state)?;
        if self.pending != Pending::Nothing {
            return Err(RestoreError::PendingAccess { vcpu: self.number });
        }
        let fresh = match self.fresh.take() {
            Some(fresh) => fresh,
            None => {
                let vcpu = self.number;
                self.read_fresh().map_err(|source| RestoreError::Baseline { vcpu, source })?
            }
        };
        if let Some(mp_state) = state.mp_state.filter(|&mp_state| mp_state != fresh.mp_state) {
            let result = self.fd.set_mp_state(kvm_mp_state { mp_state });
            result.map_err(self.refused("KVM_SET_MP_STATE", "the state's value is not one of KVM_MP_STATE_*"))?;
        }
        self.load_core(&checked)?;
        self.load_extended(state, &fresh)?;
        if let Some(apic) = checked.local_apic.filter(|apic| apic.as_bytes() != fresh.local_apic) {
            let result = self.fd.set_lapic(&apic);
            result.map_err(self.refused("KVM_SET_LAPIC", "the local APIC's page contradicts its mode or number"))?;
        }
        self.load_msrs(&state.msrs, &fresh)?;
        if let Some(debug) = checked.debug_registers.filter(|debug| debug.as_bytes() != fresh.debug_registers) {
            let result = self.fd.set_debug_regs(&debug);
            result.map_err(self.refused("KVM_SET_DEBUGREGS", "DR6, DR7 or the flags have reserved bits set"))?;
        }
        Ok(())
    }

    fn check(&self, state: &VcpuState) -> Result<Checked, RestoreError> {
        let vcpu = self.number;
        let length = |class, found, expected| RestoreError::Length { class, vcpu, found, expected };
        fn class<T: Plain>(
            bytes: &[u8],
            wrong: impl FnOnce(usize, usize) -> RestoreError,
        ) -> Result<Option<T>, RestoreError> {
            if bytes.is_empty() {
                return Ok(None);
            }
            T::from_bytes(bytes).map(Some).ok_or_else(|| wrong(bytes.len(), T::BYTES))
        }
        let xsave_bytes = self.features.xsave.bytes();
        if !state.xsave.is_empty() && state.xsave.len() != xsave_bytes {
            return Err(length("XSAVE", state.xsave.len(), xsave_bytes));
        }
        if state.msrs.len() > msrs::MAX_MSRS {
            let (found, maximum) = (state.msrs.len(), msrs::MAX_MSRS);
            return Err(RestoreError::Count { class: "model-specific registers", vcpu, found, maximum });
        }
        let special = &state.special_registers;
        let events: Option<kvm_vcpu_events> = class(&state.events, |found, wanted| length("events", found, wanted))?;
        Ok(Checked {
            has_events: events.is_some(),
            core: kvm_sync_regs {
                regs: convert::registers_to_kvm(&state.registers),
                sregs: convert::special_to_kvm(special),
                events: events.unwrap_or_default(),
            },
            pdptrs: special
                .pdptrs
                .filter(|_| self.features.sregs2 && convert::uses_pdptrs(special.cr0, special.cr4, special.efer)),
            local_apic: class(&state.local_apic, |found, wanted| length("local APIC", found, wanted))?,
            debug_registers: class(&state.debug_registers, |found, wanted| length("debug registers", found, wanted))?,
        })
    }

    /// REGS, SREGS and EVENTS: by one KVM_RUN that does not enter the guest, or by their ioctls where that cannot be
    /// or does not take.
    fn load_core(&mut self, checked: &Checked) -> Result<(), RestoreError> {
        if self.features.sync_registers && checked.has_events && checked.pdptrs.is_none() {
            let vcpu = self.number;
            self.page.set_registers(checked.core, SYNCED);
            self.kick.force_exit();
            let result = self.enter().map(|exit| exit != Exit::Interrupted);
            self.kick.unforce_exit();
            let loaded = self.page.dirty_registers() == 0;
            self.page.clear_dirty_registers();
            match result {
                Ok(true) => return Err(RestoreError::PendingAccess { vcpu }),
                Ok(false) if loaded => return Ok(()),
                // A vCPU that waits for its start, or registers that KVM refuses: the ioctls say which.
                Ok(false) => {}
                Err(RunError::Run { source, .. }) if source.raw_os_error() == Some(libc::EINVAL) => {}
                Err(source) => return Err(RestoreError::Run { vcpu, source }),
            }
        }
        self.load_core_by_ioctls(checked)
    }

    fn load_core_by_ioctls(&mut self, checked: &Checked) -> Result<(), RestoreError> {
        let kvm_sync_regs { regs, sregs, events } = &checked.core;
        self.set_regs(regs)?;
        self.set_sregs(sregs, checked)?;
        if checked.has_events {
            let result = self.fd.set_vcpu_events(events);
            result.map_err(self.refused("KVM_SET_VCPU_EVENTS", "an exception or interrupt number is out of range"))?;
        }
        Ok(())
    }

    fn set_regs(&self, regs: &kvm_regs) -> Result<(), RestoreError> {
        self.fd.set_regs(regs).map_err(self.refused("KVM_SET_REGS", "the general registers were refused"))
    }

    fn set_sregs(&self, sregs: &kvm_sregs, checked: &Checked) -> Result<(), RestoreError> {
        const ADVICE: &str = "CR0, CR4, EFER, the APIC base and the segments do not fit together";
        if let Some(pdptrs) = checked.pdptrs {
            let special = convert::special_from_kvm(sregs, None);
            return raw::set_sregs2(&self.fd, &convert::special_to_kvm2(&special, pdptrs))
                .map_err(self.failed("KVM_SET_SREGS2", ADVICE));
        }
        self.fd.set_sregs(sregs).map_err(self.refused("KVM_SET_SREGS", ADVICE))
    }

    /// XCRS, then XSAVE.
    fn load_extended(&self, state: &VcpuState, fresh: &FreshVcpu) -> Result<(), RestoreError> {
        if !state.xcrs.is_empty() && state.xcrs != fresh.xcrs {
            let Some(xcrs) = convert::xcrs_to_kvm(&state.xcrs) else {
                let (found, maximum) = (state.xcrs.len(), 16);
                return Err(RestoreError::Count {
                    class: "extended control registers",
                    vcpu: self.number,
                    found,
                    maximum,
                });
            };
            let result = self.fd.set_xcrs(&xcrs);
            result.map_err(self.refused("KVM_SET_XCRS", "XCR0 enables states that this host or class has not"))?;
        }
        if !state.xsave.is_empty() && state.xsave != fresh.xsave {
            raw::set_xsave(&self.fd, self.features.xsave, &state.xsave)
                .map_err(self.failed("KVM_SET_XSAVE", "its header or MXCSR is not valid on this host"))?;
        }
        Ok(())
    }

    fn load_msrs(&self, all: &[Msr], fresh: &FreshVcpu) -> Result<(), RestoreError> {
        let keep_tsc = !self.tsc_is_virtual;
        let mut wanted: Vec<Msr> = all
            .iter()
            .copied()
            .filter(|msr| msrs::is_state(msr.index) && !fresh.has_msr(*msr))
            .filter(|msr| !(keep_tsc && msr.index == msrs::IA32_TSC))
            .collect();
        wanted.sort_by_key(|msr| match msr.index {
            msrs::IA32_TSC => 0,
            msrs::IA32_TSC_DEADLINE => 2,
            _ => 1,
        });
        if wanted.is_empty() {
            return Ok(());
        }
        let vcpu = self.number;
        msrs::write(&self.fd, &wanted).map_err(|error| match error {
            msrs::WriteError::Refused(msr) => RestoreError::Msr { vcpu, index: msr.index, value: msr.data },
            msrs::WriteError::Ioctl(source) => self.failed("KVM_SET_MSRS", "the ioctl itself failed")(source),
        })
    }

    fn failed(&self, ioctl: &'static str, advice: &'static str) -> impl FnOnce(io::Error) -> RestoreError {
        let vcpu = self.number;
        move |source| RestoreError::Ioctl { ioctl, vcpu, advice, source }
    }

    fn refused(&self, ioctl: &'static str, advice: &'static str) -> impl FnOnce(kvm_ioctls::Error) -> RestoreError {
        let failed = self.failed(ioctl, advice);
        move |error| failed(error.into())
    }
}
