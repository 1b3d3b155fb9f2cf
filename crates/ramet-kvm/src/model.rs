//! What there is to know about this host's vCPUs before machines are made: learnt once, from a scratch machine.

use crate::raw::XsaveSize;
use crate::vcpu::{FreshVcpu, VcpuFeatures, msr_candidates};
use crate::{BaselineError, BlankVm, CreateError, Kvm, OpenError, RunError, scratch};
use kvm_bindings::{KVM_CAP_SREGS2, KVM_CAP_SYNC_REGS, KVM_CAP_XSAVE2, KVM_SYNC_X86_VALID_FIELDS};
use ramet_state::{CpuidEntry, InterruptMode, VmClass};
use std::io;

/// Why nothing could be learnt.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// No list of registers.
    #[error("KVM_GET_MSR_INDEX_LIST failed")]
    MsrIndexList(#[source] io::Error),
    /// The scratch machine could not be made.
    #[error("Cannot make a scratch machine to learn from")]
    Create(#[from] CreateError),
    /// A newborn vCPU could not be read.
    #[error("Cannot read a newborn vCPU")]
    Baseline(#[from] BaselineError),
    /// The scratch machine did not run.
    #[error("The scratch machine did not run")]
    Run(#[from] RunError),
    /// No memory for the scratch machine.
    #[error("No memory for the scratch machine")]
    Memory(#[source] io::Error),
    /// The scratch machine stopped elsewhere than expected.
    #[error("The scratch machine stopped with {exit} instead of a store")]
    Exit {
        /// What it did.
        exit: String,
    },
    /// /dev/kvm is not usable.
    #[error(transparent)]
    Open(#[from] OpenError),
}

/// What is equal for all vCPUs of this host with one CPUID. Learn it once in a family (1 to 2 ms) and let every
/// blank machine inherit it, or send it to a trusted process of the same host.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct HostModel {
    cpuid: Vec<CpuidEntry>,
    msrs: Vec<u32>,
    first: Option<FreshVcpu>,
    others: Option<FreshVcpu>,
    tsc_is_virtual: bool,
    cpuid_is_honoured: bool,
}

impl HostModel {
    /// Makes a scratch machine of two vCPUs with this CPUID, and reads what they are born with.
    ///
    /// # Errors
    /// [`ModelError`].
    pub fn learn(kvm: &Kvm, cpuid: &[CpuidEntry]) -> Result<Self, ModelError> {
        let list = kvm.inner().get_msr_index_list().map_err(|error| ModelError::MsrIndexList(error.into()))?;
        let mut model = Self {
            cpuid: cpuid.to_vec(),
            msrs: msr_candidates(list.as_slice()),
            first: None,
            others: None,
            tsc_is_virtual: true,
            cpuid_is_honoured: true,
        };
        let class = VmClass {
            memory_bytes: VmClass::MIN_MEMORY_BYTES,
            family_bytes: 0,
            vcpus: 2,
            interrupts: InterruptMode::Split,
            cpuid: cpuid.iter().copied().chain([scratch::PROBE_LEAF]).collect(),
            virtio_devices: 0,
        };
        let memory = scratch::Memory::new().map_err(ModelError::Memory)?;
        let (_vm, vcpus) = BlankVm::create(kvm, &model, &class, &[memory.slot()])?.into_parts();
        let Ok([mut first, mut other]) = <[_; 2]>::try_from(vcpus) else {
            unreachable!("a machine has as many vCPUs as its class");
        };
        let fresh = first.note_fresh()?;
        model.msrs = fresh.readable_msrs();
        model.first = Some(fresh.clone());
        model.others = Some(other.note_fresh()?.clone());
        let seen = scratch::observe(&mut first, &memory)?;
        model.tsc_is_virtual = seen.tsc_is_virtual;
        model.cpuid_is_honoured = seen.cpuid_is_honoured;
        Ok(model)
    }

    /// Whether a machine's TSC can be set. If not, guests read the host's: restoring leaves it alone, and time is
    /// kept by kvm-clock.
    pub fn tsc_is_virtual(&self) -> bool {
        self.tsc_is_virtual
    }

    /// Whether a guest's user mode sees the CPUID that it is given. If not, it sees the host's.
    pub fn cpuid_is_honoured(&self) -> bool {
        self.cpuid_is_honoured
    }

    pub(crate) fn msrs(&self) -> &[u32] {
        &self.msrs
    }

    /// What vCPU `number` is born with, if it has this CPUID.
    pub(crate) fn fresh(&self, number: u8, cpuid: &[CpuidEntry]) -> Option<FreshVcpu> {
        let fresh = if number == 0 { &self.first } else { &self.others };
        fresh.clone().filter(|_| *self.cpuid == *cpuid)
    }
}

/// Read anew in every process, since the length of a buffer that the kernel fills depends on it.
pub(crate) fn vcpu_features(kvm: &Kvm) -> VcpuFeatures {
    let synced = i32::try_from(KVM_SYNC_X86_VALID_FIELDS).unwrap_or(i32::MAX);
    VcpuFeatures {
        xsave: XsaveSize::from_capability(kvm.capability(KVM_CAP_XSAVE2)),
        sregs2: kvm.capability(KVM_CAP_SREGS2) > 0,
        sync_registers: kvm.capability(KVM_CAP_SYNC_REGS) & synced == synced,
    }
}
