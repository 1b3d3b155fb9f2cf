//! What a vCPU is born with, so that restoring sets only what differs.

use super::{Vcpu, convert};
use crate::raw::{self, Plain};
use ramet_state::{Msr, Xcr};
use std::io;

/// A newborn vCPU's state could not be read.
#[derive(Debug, thiserror::Error)]
#[error("{ioctl} of newborn vCPU {vcpu} failed")]
pub struct BaselineError {
    /// The ioctl.
    ioctl: &'static str,
    /// Which vCPU.
    vcpu: u8,
    #[source]
    source: io::Error,
}

/// The state of a newborn vCPU: equal for the first vCPUs, and for all others, of machines of one CPUID.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct FreshVcpu {
    pub(super) mp_state: u32,
    pub(super) xcrs: Vec<Xcr>,
    #[serde(with = "serde_bytes")]
    pub(super) xsave: Vec<u8>,
    #[serde(with = "serde_bytes")]
    pub(super) local_apic: Vec<u8>,
    #[serde(with = "serde_bytes")]
    pub(super) debug_registers: Vec<u8>,
    /// Sorted by index, to be searched.
    pub(super) msrs: Vec<Msr>,
}

impl FreshVcpu {
    /// The registers that can be read, in rising order.
    pub(crate) fn readable_msrs(&self) -> Vec<u32> {
        self.msrs.iter().map(|msr| msr.index).collect()
    }

    pub(super) fn has_msr(&self, msr: Msr) -> bool {
        self.msrs.binary_search_by_key(&msr.index, |own| own.index).is_ok_and(|at| self.msrs[at].data == msr.data)
    }
}

impl Vcpu {
    /// Reads what this vCPU was born with; before anything is restored into it and before it runs.
    ///
    /// # Errors
    /// [`BaselineError`] names the ioctl.
    pub fn note_fresh(&mut self) -> Result<&FreshVcpu, BaselineError> {
        let fresh = self.read_fresh()?;
        Ok(self.fresh.insert(fresh))
    }

    pub(super) fn read_fresh(&mut self) -> Result<FreshVcpu, BaselineError> {
        let vcpu = self.number;
        let failed = |ioctl| move |source: io::Error| BaselineError { ioctl, vcpu, source };
        let fd = &self.fd;
        let mp_state = fd.get_mp_state().map_err(io::Error::from).map_err(failed("KVM_GET_MP_STATE"))?.mp_state;
        let xcrs = fd.get_xcrs().map_err(io::Error::from).map_err(failed("KVM_GET_XCRS"))?;
        let lapic = fd.get_lapic().map_err(io::Error::from).map_err(failed("KVM_GET_LAPIC"))?;
        let debug = fd.get_debug_regs().map_err(io::Error::from).map_err(failed("KVM_GET_DEBUGREGS"))?;
        let xsave = raw::get_xsave(fd, self.features.xsave).map_err(failed("KVM_GET_XSAVE2"))?;
        let mut msrs = self.msrs.read(fd).map_err(failed("KVM_GET_MSRS"))?;
        msrs.sort_unstable_by_key(|msr| msr.index);
        Ok(FreshVcpu {
            mp_state,
            xcrs: convert::xcrs_from_kvm(&xcrs),
            xsave,
            local_apic: lapic.as_bytes().to_vec(),
            debug_registers: debug.as_bytes().to_vec(),
            msrs,
        })
    }

    /// Takes on another vCPU's notes: of the same place in a machine of the same CPUID.
    pub(crate) fn assume_fresh(&mut self, fresh: FreshVcpu) {
        self.fresh = Some(fresh);
    }
}
