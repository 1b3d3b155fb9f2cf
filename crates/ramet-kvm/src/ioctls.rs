//! The requests that a machine makes of KVM once it exists: what its seccomp filter must let through, and no more.

const KVMIO: u32 = 0xAE;
const WRITE: u32 = 1;
const READ: u32 = 2;

/// Linux's _IOC() (include/uapi/asm-generic/ioctl.h).
const fn request(direction: u32, number: u32, bytes: usize) -> u32 {
    (direction << 30) | ((bytes as u32) << 16) | (KVMIO << 8) | number
}

/// Request numbers of all ioctls that [`crate::Vcpu`] and [`crate::Vm`] make after creation.
pub const RUNTIME_IOCTLS: &[u32] = &[
    request(0, 0x80, 0),              // KVM_RUN
    request(READ, 0x81, 144),         // KVM_GET_REGS
    request(WRITE, 0x82, 144),        // KVM_SET_REGS
    request(READ, 0x83, 312),         // KVM_GET_SREGS
    request(WRITE, 0x84, 312),        // KVM_SET_SREGS
    request(READ, 0xCC, 320),         // KVM_GET_SREGS2
    request(WRITE, 0xCD, 320),        // KVM_SET_SREGS2
    request(READ | WRITE, 0x88, 8),   // KVM_GET_MSRS
    request(WRITE, 0x89, 8),          // KVM_SET_MSRS
    request(READ, 0x8E, 1024),        // KVM_GET_LAPIC
    request(WRITE, 0x8F, 1024),       // KVM_SET_LAPIC
    request(READ, 0x98, 4),           // KVM_GET_MP_STATE
    request(WRITE, 0x99, 4),          // KVM_SET_MP_STATE
    request(READ, 0x9F, 64),          // KVM_GET_VCPU_EVENTS
    request(WRITE, 0xA0, 64),         // KVM_SET_VCPU_EVENTS
    request(READ, 0xA1, 128),         // KVM_GET_DEBUGREGS
    request(WRITE, 0xA2, 128),        // KVM_SET_DEBUGREGS
    request(READ, 0xA4, 4096),        // KVM_GET_XSAVE
    request(WRITE, 0xA5, 4096),       // KVM_SET_XSAVE
    request(READ, 0xCF, 4096),        // KVM_GET_XSAVE2
    request(READ, 0xA6, 392),         // KVM_GET_XCRS
    request(WRITE, 0xA7, 392),        // KVM_SET_XCRS
    request(0, 0xA3, 0),              // KVM_GET_TSC_KHZ
    request(0, 0xAD, 0),              // KVM_KVMCLOCK_CTRL
    request(WRITE, 0xE2, 24),         // KVM_GET_DEVICE_ATTR (a vCPU's TSC offset)
    request(READ | WRITE, 0x62, 520), // KVM_GET_IRQCHIP
    request(READ, 0x63, 520),         // KVM_SET_IRQCHIP
    request(READ, 0x9F, 112),         // KVM_GET_PIT2
    request(WRITE, 0xA0, 112),        // KVM_SET_PIT2
    request(READ, 0x7C, 48),          // KVM_GET_CLOCK
    request(WRITE, 0x7B, 48),         // KVM_SET_CLOCK
];

/// The host's time-stamp counter.
#[allow(unsafe_code)]
#[must_use]
pub fn read_tsc() -> u64 {
    // SAFETY: RDTSC reads a counter; user space may, unless it has forbidden it to itself by prctl(PR_SET_TSC).
    unsafe { core::arch::x86_64::_rdtsc() }
}

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
