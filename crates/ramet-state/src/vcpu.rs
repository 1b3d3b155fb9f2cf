//! Everything that a vCPU is, as data.
//!
//! The classes are KVM's (Documentation/virt/kvm/api.rst). Registers that something above KVM must read or edit are
//! spelled out; the rest are KVM's own structures as bytes, with the class as their only type.

use serde::{Deserialize, Serialize};

/// KVM_GET_REGS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the architecture's names")]
pub struct Registers {
    pub rax: u64,
    pub rbx: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rsi: u64,
    pub rdi: u64,
    pub rsp: u64,
    pub rbp: u64,
    pub r8: u64,
    pub r9: u64,
    pub r10: u64,
    pub r11: u64,
    pub r12: u64,
    pub r13: u64,
    pub r14: u64,
    pub r15: u64,
    pub rip: u64,
    pub rflags: u64,
}

/// A segment register with its hidden part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// Linear base address.
    pub base: u64,
    /// Limit in bytes.
    pub limit: u32,
    /// Selector.
    pub selector: u16,
    /// Descriptor type (4 bits).
    pub kind: u8,
    /// Present.
    pub present: u8,
    /// Descriptor privilege level.
    pub dpl: u8,
    /// Default operation size.
    pub db: u8,
    /// Code or data (1) or system (0).
    pub s: u8,
    /// 64-bit code.
    pub l: u8,
    /// Granularity.
    pub g: u8,
    /// Available to software.
    pub avl: u8,
    /// KVM's mark of an unusable segment.
    pub unusable: u8,
}

/// GDTR or IDTR.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DescriptorTable {
    /// Linear base address.
    pub base: u64,
    /// Limit in bytes, less one.
    pub limit: u16,
}

/// KVM_GET_SREGS, with the PDPTRs of KVM_GET_SREGS2 where the host has them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the architecture's names")]
pub struct SpecialRegisters {
    pub cs: Segment,
    pub ds: Segment,
    pub es: Segment,
    pub fs: Segment,
    pub gs: Segment,
    pub ss: Segment,
    pub tr: Segment,
    pub ldt: Segment,
    pub gdt: DescriptorTable,
    pub idt: DescriptorTable,
    pub cr0: u64,
    pub cr2: u64,
    pub cr3: u64,
    pub cr4: u64,
    pub cr8: u64,
    pub efer: u64,
    pub apic_base: u64,
    /// Pending external interrupt (kvm_sregs.interrupt_bitmap); all zero with an in-kernel local APIC.
    pub interrupt_bitmap: [u64; 4],
    /// PAE page-directory pointers, valid in PAE mode only; `None` where the host has no KVM_GET_SREGS2.
    pub pdptrs: Option<[u64; 4]>,
}

/// A model-specific register. Encoded as a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "(u32, u64)", from = "(u32, u64)")]
#[expect(missing_docs, reason = "named by their fields")]
pub struct Msr {
    pub index: u32,
    pub data: u64,
}

impl From<Msr> for (u32, u64) {
    fn from(msr: Msr) -> (u32, u64) {
        (msr.index, msr.data)
    }
}

impl From<(u32, u64)> for Msr {
    fn from((index, data): (u32, u64)) -> Msr {
        Msr { index, data }
    }
}

/// An extended control register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "named by their fields")]
pub struct Xcr {
    pub index: u32,
    pub value: u64,
}

/// One vCPU. An empty byte class means "as KVM creates it".
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VcpuState {
    /// General-purpose registers.
    pub registers: Registers,
    /// Segments and control registers.
    pub special_registers: SpecialRegisters,
    /// kvm_xsave, as long as KVM_CAP_XSAVE2 says (at least 4,096 bytes).
    #[serde(with = "serde_bytes")]
    pub xsave: Vec<u8>,
    /// Extended control registers.
    pub xcrs: Vec<Xcr>,
    /// Every register of the host's KVM_GET_MSR_INDEX_LIST that could be read.
    pub msrs: Vec<Msr>,
    /// kvm_lapic_state, 1,024 bytes.
    #[serde(with = "serde_bytes")]
    pub local_apic: Vec<u8>,
    /// kvm_vcpu_events, 64 bytes.
    #[serde(with = "serde_bytes")]
    pub events: Vec<u8>,
    /// kvm_debugregs, 128 bytes.
    #[serde(with = "serde_bytes")]
    pub debug_registers: Vec<u8>,
    /// KVM_MP_STATE_*; `None` for "as KVM creates it".
    pub mp_state: Option<u32>,
}
