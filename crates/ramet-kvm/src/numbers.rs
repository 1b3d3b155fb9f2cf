//! The request numbers of the ioctls that a created machine still needs, for the filter of its process.

use kvm_bindings::{
    kvm_clock_data, kvm_debugregs, kvm_irqchip, kvm_lapic_state, kvm_mp_state, kvm_msrs, kvm_pit_state2, kvm_regs,
    kvm_sregs, kvm_sregs2, kvm_vcpu_events, kvm_xcrs, kvm_xsave,
};

/// asm-generic/ioctl.h.
const WRITE: u32 = 1;
const READ: u32 = 2;

const fn number<T>(direction: u32, number: u32) -> u32 {
    direction << 30 | (size_of::<T>() as u32) << 16 | kvm_bindings::KVMIO << 8 | number
}

/// Everything that [`crate::Vcpu`] and [`crate::Vm`] use; nothing that [`crate::BlankVm`] needs for creation.
pub const RUNTIME_IOCTLS: &[u32] = &[
    // KVM_RUN, and each class: what reads it, what writes it.
    number::<()>(0, 0x80),
    number::<kvm_regs>(READ, 0x81),
    number::<kvm_regs>(WRITE, 0x82),
    number::<kvm_sregs>(READ, 0x83),
    number::<kvm_sregs>(WRITE, 0x84),
    number::<kvm_sregs2>(READ, 0xCC),
    number::<kvm_sregs2>(WRITE, 0xCD),
    number::<kvm_msrs>(READ | WRITE, 0x88),
    number::<kvm_msrs>(WRITE, 0x89),
    number::<kvm_lapic_state>(READ, 0x8E),
    number::<kvm_lapic_state>(WRITE, 0x8F),
    number::<kvm_mp_state>(READ, 0x98),
    number::<kvm_mp_state>(WRITE, 0x99),
    number::<kvm_vcpu_events>(READ, 0x9F),
    number::<kvm_vcpu_events>(WRITE, 0xA0),
    number::<kvm_debugregs>(READ, 0xA1),
    number::<kvm_debugregs>(WRITE, 0xA2),
    // KVM_GET_XSAVE, KVM_GET_XSAVE2, and KVM_SET_XSAVE for both.
    number::<kvm_xsave>(READ, 0xA4),
    number::<kvm_xsave>(READ, 0xCF),
    number::<kvm_xsave>(WRITE, 0xA5),
    number::<kvm_xcrs>(READ, 0xA6),
    number::<kvm_xcrs>(WRITE, 0xA7),
    // KVM_KVMCLOCK_CTRL and KVM_GET_TSC_KHZ.
    number::<()>(0, 0xAD),
    number::<()>(0, 0xA3),
    // Of the machine: KVM_GET_IRQCHIP is read and write, KVM_SET_IRQCHIP says "read" although it writes.
    number::<kvm_irqchip>(READ | WRITE, 0x62),
    number::<kvm_irqchip>(READ, 0x63),
    number::<kvm_pit_state2>(READ, 0x9F),
    number::<kvm_pit_state2>(WRITE, 0xA0),
    number::<kvm_clock_data>(WRITE, 0x7B),
    number::<kvm_clock_data>(READ, 0x7C),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_the_kernels() {
        // KVM_RUN, KVM_GET_REGS, KVM_SET_MSRS, KVM_SET_IRQCHIP, KVM_GET_CLOCK, as strace prints them.
        for known in [0xAE80, 0x8090_AE81, 0x4008_AE89, 0x8208_AE63, 0x8030_AE7C] {
            assert!(RUNTIME_IOCTLS.contains(&known), "{known:#x}");
        }
        assert!(RUNTIME_IOCTLS.iter().enumerate().all(|(at, number)| !RUNTIME_IOCTLS[..at].contains(number)));
    }
}
