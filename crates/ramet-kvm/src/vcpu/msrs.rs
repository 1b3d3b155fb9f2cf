//! Which model-specific registers are part of a vCPU's state, and reading and writing them in few ioctls.
//!
//! The list is KVM's own (KVM_GET_MSR_INDEX_LIST) with the memory-type range registers, which it leaves out although
//! a kernel sets them, less those in [`NEVER`]. Deliberately absent: the machine-check banks (128 registers that stay
//! zero, since no machine check is ever injected).

use kvm_bindings::{KVM_MAX_MSR_ENTRIES, Msrs, kvm_msr_entry};
use kvm_ioctls::VcpuFd;
use ramet_state::Msr;
use std::io;

/// Time-stamp counter.
pub(crate) const IA32_TSC: u32 = 0x10;
/// TSC deadline of the local APIC's timer: dropped by KVM unless the APIC is in that mode already, so it is restored
/// after the local APIC and after the counter that it refers to.
pub(crate) const IA32_TSC_DEADLINE: u32 = 0x6E0;

/// Most registers in a state.
pub(crate) const MAX_MSRS: usize = 1024;

/// Registers that are never saved nor restored: through these KVM would write guest memory on its own account (KVM's
/// asynchronous page faults and steal time, which CPUID does not offer).
const NEVER: &[u32] = &[0x4b56_4d02, 0x4b56_4d03, 0x4b56_4d06, 0x4b56_4d07];
/// Hyper-V's registers, the same for an interface that no CPUID of ours offers.
const HYPER_V: std::ops::Range<u32> = 0x4000_0000..0x4000_1000;

/// Memory-type range registers (SDM volume 3, section 12.11).
fn memory_types() -> impl Iterator<Item = u32> {
    (0x200..0x210).chain([0x250, 0x258, 0x259]).chain(0x268..0x270).chain([0x2FF])
}

/// Whether a register may be part of a state.
pub(crate) fn is_state(index: u32) -> bool {
    !NEVER.contains(&index) && !HYPER_V.contains(&index)
}

/// Candidates for saving, from KVM's index list.
pub(crate) fn candidates(index_list: &[u32]) -> Vec<u32> {
    let mut all: Vec<u32> = index_list.iter().copied().chain(memory_types()).filter(|&index| is_state(index)).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Registers to read, prepared in KVM's form: batches of as many as one ioctl takes.
#[derive(Debug)]
pub(crate) struct MsrList {
    batches: Vec<Msrs>,
}

impl MsrList {
    pub(crate) fn new(indices: &[u32]) -> Self {
        let batch = |indices: &[u32]| {
            let entries: Vec<_> = indices.iter().map(|&index| kvm_msr_entry { index, ..Default::default() }).collect();
            Msrs::from_entries(&entries).expect("a chunk is at most as long as an Msrs may be")
        };
        Self { batches: indices.chunks(KVM_MAX_MSR_ENTRIES).map(batch).collect() }
    }

    /// Reads all of them; those that KVM refuses are left out.
    pub(crate) fn read(&mut self, vcpu: &VcpuFd) -> io::Result<Vec<Msr>> {
        let mut values = Vec::with_capacity(self.batches.iter().map(|batch| batch.as_slice().len()).sum());
        for batch in &mut self.batches {
            let read = vcpu.get_msrs(batch)?;
            values.extend(batch.as_slice().iter().take(read).map(from_kvm));
            let mut rest = batch.as_slice().get(read + 1..).unwrap_or_default().to_vec();
            // KVM stops at the first register that it refuses: go on behind it.
            while !rest.is_empty() {
                let mut again = Msrs::from_entries(&rest).map_err(|error| io::Error::other(format!("{error:?}")))?;
                let read = vcpu.get_msrs(&mut again)?;
                values.extend(again.as_slice().iter().take(read).map(from_kvm));
                rest = rest.get(read + 1..).unwrap_or_default().to_vec();
            }
        }
        Ok(values)
    }
}

/// A register that KVM did not accept, or an error of the ioctl itself.
pub(crate) enum WriteError {
    Refused(Msr),
    Ioctl(io::Error),
}

/// Writes registers in the order given. One that KVM refuses but that has the wanted value already is no error: some
/// registers can be read only.
pub(crate) fn write(vcpu: &VcpuFd, msrs: &[Msr]) -> Result<(), WriteError> {
    let mut rest = msrs;
    while !rest.is_empty() {
        let chunk = &rest[..rest.len().min(KVM_MAX_MSR_ENTRIES)];
        let written = vcpu.set_msrs(&in_kvms_form(chunk)?).map_err(|error| WriteError::Ioctl(error.into()))?;
        rest = match chunk.get(written) {
            None => &rest[chunk.len()..],
            Some(&refused) if read_one(vcpu, refused.index)? == Some(refused.data) => &rest[written + 1..],
            Some(&refused) => return Err(WriteError::Refused(refused)),
        };
    }
    Ok(())
}

fn in_kvms_form(msrs: &[Msr]) -> Result<Msrs, WriteError> {
    let entries: Vec<_> =
        msrs.iter().map(|msr| kvm_msr_entry { index: msr.index, data: msr.data, ..Default::default() }).collect();
    Msrs::from_entries(&entries).map_err(|error| WriteError::Ioctl(io::Error::other(format!("{error:?}"))))
}

fn read_one(vcpu: &VcpuFd, index: u32) -> Result<Option<u64>, WriteError> {
    let mut one = in_kvms_form(&[Msr { index, data: 0 }])?;
    let read = vcpu.get_msrs(&mut one).map_err(|error| WriteError::Ioctl(error.into()))?;
    Ok(one.as_slice().first().filter(|_| read == 1).map(|entry| entry.data))
}

fn from_kvm(entry: &kvm_msr_entry) -> Msr {
    Msr { index: entry.index, data: entry.data }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_with_which_kvm_writes_memory_are_not_state() {
        let list = candidates(&[0x4b56_4d03, 0x10, 0x4b56_4d02, 0x6E0, 0x4000_0020, 0x10]);
        assert!(!list.iter().any(|index| [0x4b56_4d02, 0x4b56_4d03, 0x4000_0020].contains(index)));
        assert!(list.contains(&0x2FF), "memory types are missing from KVM's list");
        assert!(list.is_sorted_by(|a, b| a < b));
    }
}
