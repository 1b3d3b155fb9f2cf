//! The CPUID of a class of machines, and what differs between its vCPUs.
//!
//! The guest gets what KVM can virtualize (KVM_GET_SUPPORTED_CPUID) less what a clone could not keep. Masked, with
//! the reason, in [`MASKS`]: state that this crate does not save (nested virtualization, performance counters,
//! processor trace, AMX, control-flow enforcement) and paravirtual features through which KVM would write guest
//! memory behind the monitor's back (steal time, asynchronous page faults).
//!
//! Deliberately absent: models of named processors for fleets of unequal hosts.

use crate::{Flavour, Kvm};
use kvm_bindings::{CpuId, KVM_MAX_CPUID_ENTRIES, kvm_cpuid_entry2};
use ramet_state::CpuidEntry;
use std::io;

/// KVM's paravirtual features (Documentation/virt/kvm/x86/cpuid.rst).
const KVM_FEATURES: u32 = 0x4000_0001;
/// Extended topology, version 1 and 2: EDX is the x2APIC id.
const TOPOLOGY: [u32; 2] = [0xB, 0x1F];
/// XSAVE state components.
const XSAVE: u32 = 0xD;
/// AMD's extended APIC id (EAX).
const AMD_TOPOLOGY: u32 = 0x8000_001E;

/// Components that a machine's XCR0 may have: x87, SSE, AVX and the three of AVX-512 (SDM volume 1, section 13.1).
const XCR0_MASK: u64 = 0xE7;
const XCR0_AVX: u64 = 0x4;
const XCR0_AVX512: u64 = 0xE0;

/// Why CPUID cannot be had from the host.
#[derive(Debug, thiserror::Error)]
#[error("KVM_GET_SUPPORTED_CPUID with room for {KVM_MAX_CPUID_ENTRIES} entries failed")]
pub struct CpuidError(#[source] pub io::Error);

/// A register of a CPUID leaf.
#[derive(Clone, Copy)]
enum Register {
    Eax,
    Ebx,
    Ecx,
    Edx,
}
use Register::{Eax, Ebx, Ecx, Edx};

/// Features that no machine gets: leaf, subleaf, register, bits.
const MASKS: &[(u32, u32, Register, u32)] = &[
    // VMX (5), PDCM (15): nested and performance-monitoring state are not saved.
    (0x1, 0, Ecx, 1 << 5 | 1 << 15),
    // SGX (2), MPX (14), processor trace (25).
    (0x7, 0, Ebx, 1 << 2 | 1 << 14 | 1 << 25),
    // Shadow stacks (7), SGX launch control (30).
    (0x7, 0, Ecx, 1 << 7 | 1 << 30),
    // Architectural LBR (19), indirect branch tracking (20), AMX (22, 24, 25).
    (0x7, 0, Edx, 1 << 19 | 1 << 20 | 1 << 22 | 1 << 24 | 1 << 25),
    // AMX-FP16 (21).
    (0x7, 1, Eax, 1 << 21),
    // XFD (4) goes with AMX.
    (XSAVE, 1, Eax, 1 << 4),
    // Supervisor state components belong to the features above.
    (XSAVE, 1, Ecx, u32::MAX),
    (XSAVE, 1, Edx, u32::MAX),
    // MPX (3, 4) and AMX (17, 18) in XCR0.
    (XSAVE, 0, Eax, 1 << 3 | 1 << 4 | 1 << 17 | 1 << 18),
    // SVM (2), performance counters (23, 24, 28).
    (0x8000_0001, 0, Ecx, 1 << 2 | 1 << 23 | 1 << 24 | 1 << 28),
    // KVM: asynchronous page faults (4, 10, 14), steal time (5) and what needs it: PV TLB flush (9), yield (13).
    (KVM_FEATURES, 0, Eax, 1 << 4 | 1 << 5 | 1 << 9 | 1 << 10 | 1 << 13 | 1 << 14),
];

/// On a software KVM a hypercall from ring 0 never returns: PV unhalt (7), PV IPI (11).
const SOFTWARE_MASKS: &[(u32, u32, Register, u32)] = &[(KVM_FEATURES, 0, Eax, 1 << 7 | 1 << 11)];

/// Leaves whose features are masked as a whole: performance monitoring, SGX, processor trace, LBR, AMX, SVM, and
/// AMD's performance monitoring.
const CLEARED_LEAVES: &[u32] = &[0xA, 0x12, 0x14, 0x1C, 0x1D, 0x1E, 0x23, 0x8000_000A, 0x8000_0022];

/// The CPUID of a machine of this host.
///
/// # Errors
/// [`CpuidError`] with the errno of KVM_GET_SUPPORTED_CPUID.
pub fn host_cpuid(kvm: &Kvm) -> Result<Vec<CpuidEntry>, CpuidError> {
    let supported = kvm.inner().get_supported_cpuid(KVM_MAX_CPUID_ENTRIES).map_err(|error| CpuidError(error.into()))?;
    let deadline_timer = kvm.capability(kvm_bindings::KVM_CAP_TSC_DEADLINE_TIMER) > 0;
    Ok(from_supported(supported.as_slice().iter().map(from_kvm).collect(), Flavour::detect(), deadline_timer))
}

/// The extended states that a guest may enable: x87, SSE, AVX and AVX-512 as far as CPUID allows them, as an XCR0.
pub fn supported_xcr0(cpuid: &[CpuidEntry]) -> u64 {
    let leaf = cpuid.iter().find(|entry| entry.function == XSAVE && entry.index == 0);
    let allowed = leaf.map_or(1, |entry| u64::from(entry.edx) << 32 | u64::from(entry.eax)) & XCR0_MASK | 1;
    if allowed & XCR0_AVX == 0 {
        allowed & 0x3
    } else if allowed & XCR0_AVX512 != XCR0_AVX512 {
        allowed & 0x7
    } else {
        allowed
    }
}

fn from_supported(mut entries: Vec<CpuidEntry>, flavour: Flavour, deadline_timer: bool) -> Vec<CpuidEntry> {
    entries.retain(|entry| !CLEARED_LEAVES.contains(&entry.function));
    for entry in &mut entries {
        for &(function, index, register, bits) in MASKS {
            mask(entry, function, index, register, bits);
        }
        if !matches!(flavour, Flavour::Vmx | Flavour::Svm) {
            for &(function, index, register, bits) in SOFTWARE_MASKS {
                mask(entry, function, index, register, bits);
            }
        }
        if entry.function == 1 {
            entry.ecx |= 1 << 31 | u32::from(deadline_timer) << 24;
        }
    }
    entries
}

fn mask(entry: &mut CpuidEntry, function: u32, index: u32, register: Register, bits: u32) {
    if entry.function == function && entry.index == index {
        *register_of(entry, register) &= !bits;
    }
}

fn register_of(entry: &mut CpuidEntry, register: Register) -> &mut u32 {
    match register {
        Eax => &mut entry.eax,
        Ebx => &mut entry.ebx,
        Ecx => &mut entry.ecx,
        Edx => &mut entry.edx,
    }
}

/// The class's CPUID for vCPU `number` of `vcpus`: APIC ids and the number of logical processors.
pub(crate) fn for_vcpu(cpuid: &[CpuidEntry], number: u8, vcpus: u8) -> Option<CpuId> {
    let entries: Vec<_> = cpuid
        .iter()
        .map(|entry| {
            let mut entry = *entry;
            match entry.function {
                1 => {
                    entry.ebx = entry.ebx & 0xFFFF | u32::from(number) << 24 | u32::from(vcpus) << 16;
                    entry.edx = entry.edx & !(1 << 28) | u32::from(vcpus > 1) << 28;
                }
                function if TOPOLOGY.contains(&function) => entry.edx = number.into(),
                AMD_TOPOLOGY => entry.eax = number.into(),
                _ => {}
            }
            into_kvm(&entry)
        })
        .collect();
    CpuId::from_entries(&entries).ok()
}

fn from_kvm(entry: &kvm_cpuid_entry2) -> CpuidEntry {
    let &kvm_cpuid_entry2 { function, index, flags, eax, ebx, ecx, edx, .. } = entry;
    CpuidEntry { function, index, flags, eax, ebx, ecx, edx }
}

fn into_kvm(entry: &CpuidEntry) -> kvm_cpuid_entry2 {
    let &CpuidEntry { function, index, flags, eax, ebx, ecx, edx } = entry;
    kvm_cpuid_entry2 { function, index, flags, eax, ebx, ecx, edx, ..Default::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(function: u32, index: u32, eax: u32) -> CpuidEntry {
        CpuidEntry { function, index, flags: 0, eax, ebx: u32::MAX, ecx: u32::MAX, edx: u32::MAX }
    }

    #[test]
    fn xcr0_has_avx512_only_as_a_whole_and_never_amx() {
        let of = |eax| supported_xcr0(&[CpuidEntry { edx: 0, ..leaf(XSAVE, 0, eax) }]);
        assert_eq!(of(0x600E7), 0xE7);
        assert_eq!(of(0x67), 0x7);
        assert_eq!(of(0xE3), 0x3);
        assert_eq!(of(0x207), 0x7);
        assert_eq!(supported_xcr0(&[]), 1);
    }

    #[test]
    fn features_whose_state_is_not_saved_are_masked() {
        let all = vec![leaf(1, 0, 0), leaf(7, 0, 0), leaf(0xA, 0, 8), leaf(KVM_FEATURES, 0, u32::MAX)];
        let hardware = from_supported(all.clone(), Flavour::Vmx, true);
        assert_eq!(hardware.len(), 3, "leaf 0xA must go");
        assert_eq!(hardware[0].ecx >> 5 & 1, 0, "VMX");
        assert_eq!(hardware[0].ecx >> 24 & 1, 1, "TSC deadline");
        assert_eq!(hardware[2].eax & (1 << 5 | 1 << 4), 0, "steal time, async page faults");
        assert_eq!(hardware[2].eax >> 11 & 1, 1, "PV IPI stays on hardware");
        let software = from_supported(all, Flavour::Software, true);
        assert_eq!(software[2].eax >> 11 & 1, 0, "PV IPI hangs on a software KVM");
    }

    #[test]
    fn vcpus_differ_in_their_apic_ids() {
        let class = [leaf(1, 0, 0), leaf(0xB, 1, 0), leaf(0x1F, 0, 0)];
        let cpuid = for_vcpu(&class, 3, 4).unwrap();
        let entries = cpuid.as_slice();
        assert_eq!(entries[0].ebx >> 16, 3 << 8 | 4);
        assert_eq!(entries[0].edx >> 28 & 1, 1);
        assert_eq!((entries[1].edx, entries[2].edx), (3, 3));
    }

    #[test]
    fn the_host_has_a_cpuid_with_the_hypervisor_bit() {
        let kvm = Kvm::open().expect("these tests need /dev/kvm");
        let cpuid = host_cpuid(&kvm).unwrap();
        let first = cpuid.iter().find(|entry| entry.function == 1).expect("leaf 1");
        assert_eq!(first.ecx >> 31, 1);
        assert!(cpuid.iter().any(|entry| entry.function == KVM_FEATURES));
    }
}
