//! Reading all of a vCPU's state.

use super::{Exit, Pending, RunError, Vcpu, convert};
use crate::raw::{self, Plain};
use kvm_bindings::{KVM_SYNC_X86_EVENTS, KVM_SYNC_X86_REGS, KVM_SYNC_X86_SREGS, kvm_sync_regs};
use ramet_state::VcpuState;
use std::io;

/// Registers that KVM stores into the run page by itself.
pub(super) const SYNCED: u64 = (KVM_SYNC_X86_REGS | KVM_SYNC_X86_SREGS | KVM_SYNC_X86_EVENTS) as u64;

/// Why a vCPU's state cannot be saved.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    /// An ioctl failed.
    #[error("{ioctl} of vCPU {vcpu} failed while saving it")]
    Ioctl {
        /// The ioctl.
        ioctl: &'static str,
        /// Which vCPU.
        vcpu: u8,
        #[source]
        #[expect(missing_docs, reason = "the errno")]
        source: io::Error,
    },
    /// The last exit's write has a second part that is not served.
    #[error("vCPU {vcpu} has a write that is half done: complete pending accesses before saving")]
    PendingAccess {
        /// Which vCPU.
        vcpu: u8,
    },
    /// KVM_RUN failed when asked for the registers.
    #[error("The registers of vCPU {vcpu} cannot be read")]
    Run {
        /// Which vCPU.
        vcpu: u8,
        #[source]
        #[expect(missing_docs, reason = "the cause")]
        source: RunError,
    },
}

impl Vcpu {
    /// Saves everything. Complete pending accesses first ([`Self::complete_pending`]), unless the last exit is a read
    /// that the saved machine shall make again: the state is then that before the reading instruction, and this vCPU
    /// goes on waiting for its data.
    ///
    /// # Errors
    /// [`SaveError`] names the ioctl.
    pub fn save(&mut self) -> Result<VcpuState, SaveError> {
        let vcpu = self.number;
        let failed = |ioctl| move |source: io::Error| SaveError::Ioctl { ioctl, vcpu, source };
        // First, since it makes KVM process a pending INIT or SIPI, which changes other classes.
        let mp_state = self.fd.get_mp_state().map_err(io::Error::from).map_err(failed("KVM_GET_MP_STATE"))?.mp_state;
        let kvm_sync_regs { regs, sregs, events } = self.core_registers()?;
        let pdptrs = if self.features.sregs2 && convert::uses_pdptrs(sregs.cr0, sregs.cr4, sregs.efer) {
            Some(raw::get_sregs2(&self.fd).map_err(failed("KVM_GET_SREGS2"))?.pdptrs)
        } else {
            None
        };
        let fd = &self.fd;
        let xcrs = fd.get_xcrs().map_err(io::Error::from).map_err(failed("KVM_GET_XCRS"))?;
        let lapic = fd.get_lapic().map_err(io::Error::from).map_err(failed("KVM_GET_LAPIC"))?;
        let debug = fd.get_debug_regs().map_err(io::Error::from).map_err(failed("KVM_GET_DEBUGREGS"))?;
        Ok(VcpuState {
            registers: convert::registers_from_kvm(&regs),
            special_registers: convert::special_from_kvm(&sregs, pdptrs),
            xsave: raw::get_xsave(fd, self.features.xsave).map_err(failed("KVM_GET_XSAVE2"))?,
            xcrs: convert::xcrs_from_kvm(&xcrs),
            msrs: self.msrs.read(fd).map_err(failed("KVM_GET_MSRS"))?,
            local_apic: lapic.as_bytes().to_vec(),
            events: events.as_bytes().to_vec(),
            debug_registers: debug.as_bytes().to_vec(),
            mp_state: Some(mp_state),
        })
    }

    /// Three classes for one KVM_RUN that does not enter the guest; it also shows that nothing is pending.
    fn core_registers(&mut self) -> Result<kvm_sync_regs, SaveError> {
        let vcpu = self.number;
        if self.pending == Pending::Read {
            return self.core_registers_by_ioctls();
        }
        self.page.set_valid_registers(if self.features.sync_registers { SYNCED } else { 0 });
        self.kick.force_exit();
        let pending = self.enter().map(|exit| exit != Exit::Interrupted);
        self.kick.unforce_exit();
        self.page.set_valid_registers(0);
        if pending.map_err(|source| SaveError::Run { vcpu, source })? {
            return Err(SaveError::PendingAccess { vcpu });
        }
        if self.features.sync_registers {
            return Ok(self.page.synced_registers());
        }
        self.core_registers_by_ioctls()
    }

    fn core_registers_by_ioctls(&self) -> Result<kvm_sync_regs, SaveError> {
        let vcpu = self.number;
        let failed = |ioctl| move |source: io::Error| SaveError::Ioctl { ioctl, vcpu, source };
        Ok(kvm_sync_regs {
            regs: self.fd.get_regs().map_err(io::Error::from).map_err(failed("KVM_GET_REGS"))?,
            sregs: self.fd.get_sregs().map_err(io::Error::from).map_err(failed("KVM_GET_SREGS"))?,
            events: self.fd.get_vcpu_events().map_err(io::Error::from).map_err(failed("KVM_GET_VCPU_EVENTS"))?,
        })
    }
}
