//! A whole machine as data.

use crate::{MemoryRegion, PartState, VcpuState, VmClass};
use serde::{Deserialize, Serialize};

/// Who a machine is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Number in its family; 0 is the founder.
    pub number: u64,
    /// Number of the machine that it was forked from; its own number for a founder.
    pub parent: u64,
    /// Forks between the founder and this machine.
    pub depth: u32,
    /// 128 bits that change whenever memory may have been duplicated or turned back (VMGENID).
    pub generation: [u8; 16],
    /// Changes with `generation`; increases along a lineage.
    pub generation_counter: u32,
}

/// kvm-clock and the moment at which it was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockState {
    /// kvm-clock in nanoseconds.
    pub kvm_clock_ns: u64,
    /// The host's CLOCK_BOOTTIME in nanoseconds when `kvm_clock_ns` was read; 0 in a machine that never ran.
    pub host_boottime_ns: u64,
}

/// Interrupt controllers outside of the vCPUs: KVM's structures as bytes, empty for "as KVM creates it" or absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterruptControllerState {
    /// kvm_irqchip of PIC master, PIC slave and I/O APIC; empty in split mode.
    pub chips: Vec<serde_bytes::ByteBuf>,
    /// kvm_pit_state2; empty without a PIT.
    #[serde(with = "serde_bytes")]
    pub pit: Vec<u8>,
}

/// A machine that is not running: what boot loaders produce, what a pause leaves, what a builder takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineState {
    /// What the KVM objects were made from.
    pub class: VmClass,
    /// Who it is.
    pub identity: Identity,
    /// One per vCPU.
    pub vcpus: Vec<VcpuState>,
    /// Interrupt controllers.
    pub interrupt_controller: InterruptControllerState,
    /// kvm-clock.
    pub clock: ClockState,
    /// Memory regions; their contents live in layers.
    pub memory: Vec<MemoryRegion>,
    /// Devices.
    pub parts: Vec<PartState>,
    /// Set while a guest-called fork or ready waits for its value: the vCPU that called, whose RAX a plan may edit.
    pub caller: Option<u8>,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{CloneRule, CpuidEntry, Handle, InterruptMode, Msr, Registers, SpecialRegisters, Xcr, memory_regions};
    use proptest::prelude::*;

    fn vcpu(seed: u64) -> VcpuState {
        VcpuState {
            registers: Registers { rax: seed, rip: seed ^ 0x20_0000, rflags: 2, ..Registers::default() },
            special_registers: SpecialRegisters { cr3: seed & !0xFFF, ..SpecialRegisters::default() },
            xsave: vec![u8::try_from(seed & 0xFF).unwrap(); 4096],
            xcrs: vec![Xcr { index: 0, value: 0xE7 }],
            msrs: vec![Msr { index: 0x10, data: seed }],
            local_apic: vec![1; 1024],
            events: vec![2; 64],
            debug_registers: vec![3; 128],
            mp_state: Some(0),
        }
    }

    fn part(id: String, rule: CloneRule, registers: Vec<u8>) -> PartState {
        PartState {
            id,
            kind: "test".to_owned(),
            version: 1,
            registers,
            handles: vec![Handle { role: "backend".to_owned(), rule }],
        }
    }

    fn machine(vcpus: u8, memory_bytes: u64, family_bytes: u64, seed: u64) -> MachineState {
        let class = VmClass {
            memory_bytes,
            family_bytes,
            vcpus,
            interrupts: InterruptMode::Split,
            cpuid: vec![CpuidEntry { function: 0, index: 0, flags: 0, eax: 1, ebx: 2, ecx: 3, edx: 4 }],
            virtio_devices: 2,
        };
        MachineState {
            memory: memory_regions(&class),
            vcpus: (0..vcpus).map(|index| vcpu(seed ^ u64::from(index))).collect(),
            class,
            identity: Identity {
                number: seed & 0xFFFF,
                parent: 0,
                depth: 1,
                generation: [1; 16],
                generation_counter: 1,
            },
            interrupt_controller: InterruptControllerState::default(),
            clock: ClockState { kvm_clock_ns: seed & 0xFFFF_FFFF, host_boottime_ns: 5 },
            parts: vec![],
            caller: None,
        }
    }

    pub(crate) fn sample_machine() -> MachineState {
        let mut state = machine(2, 128 << 20, 0, 99);
        state.parts = vec![
            part("serial".to_owned(), CloneRule::Recreate, vec![1, 2, 3]),
            part("disk".to_owned(), CloneRule::Share, vec![]),
        ];
        state
    }

    pub(crate) fn any_machine() -> impl Strategy<Value = MachineState> {
        let rule = prop_oneof![
            Just(CloneRule::Share),
            Just(CloneRule::Copy),
            Just(CloneRule::Recreate),
            Just(CloneRule::ReIdentify)
        ];
        let parts = prop::collection::vec((rule, prop::collection::vec(any::<u8>(), 0..64)), 0..6);
        let family = prop_oneof![Just(0u64), Just(1 << 16)];
        (1u8..=4, 2u64..4096, family, any::<u64>(), parts, any::<bool>()).prop_map(
            |(vcpus, mib2, family, seed, parts, called)| {
                let mut state = machine(vcpus, (8 << 20) + (mib2 << 21), family, seed);
                let named = parts.into_iter().enumerate();
                state.parts = named.map(|(n, (rule, bytes))| part(format!("part{n}"), rule, bytes)).collect();
                state.caller = called.then_some(vcpus - 1);
                state
            },
        )
    }
}
