//! The local APIC, in xAPIC mode: switching it on, and waking other vCPUs. Ending interrupts is ring 0's.

use ramet_abi::layout::LOCAL_APIC_BASE;

use super::mmio;
use crate::ring0::{SPURIOUS_VECTOR, WAKE_VECTOR};

const SPURIOUS_VECTOR_REGISTER: u64 = LOCAL_APIC_BASE + 0xF0;
const SOFTWARE_ENABLE: u32 = 1 << 8;
const INTERRUPT_COMMAND_LOW: u64 = LOCAL_APIC_BASE + 0x300;
const INTERRUPT_COMMAND_HIGH: u64 = LOCAL_APIC_BASE + 0x310;
const LEVEL_ASSERT: u32 = 1 << 14;

/// Lets this vCPU's local APIC accept interrupts.
pub fn enable() {
    mmio::write(SPURIOUS_VECTOR_REGISTER, SOFTWARE_ENABLE | SPURIOUS_VECTOR);
}

/// Wakes another vCPU, whose APIC id is its index.
pub fn wake(vcpu: u8) {
    mmio::write(INTERRUPT_COMMAND_HIGH, u32::from(vcpu) << 24);
    mmio::write(INTERRUPT_COMMAND_LOW, LEVEL_ASSERT | (WAKE_VECTOR + u32::from(vcpu)));
}
