//! Instructions that have no other name in Rust.
#![allow(unsafe_code)]

use core::arch::asm;
use core::arch::x86_64::{__cpuid, __cpuid_count, _rdtsc};

/// The time-stamp counter.
pub fn time_stamp() -> u64 {
    // SAFETY: RDTSC is allowed in ring 3 while CR4.TSD is clear, as it is from the start.
    unsafe { _rdtsc() }
}

/// What this CPU lets ring 3 use.
#[derive(Clone, Copy)]
pub struct Features {
    /// The RDRAND instruction.
    pub rdrand: bool,
    /// AVX, with its state enabled in XCR0.
    pub avx: bool,
    /// AVX-512 F, BW and DQ, with their state enabled in XCR0.
    pub avx512: bool,
}

impl Features {
    /// Asks the CPU. Takes microseconds, as CPUID may exit to KVM.
    #[allow(unused_unsafe, reason = "CPUID is a safe function in newer releases of the core library")]
    pub fn detect() -> Self {
        // SAFETY: every CPU with long mode has CPUID.
        let (highest, first) = unsafe { (__cpuid(0).eax, __cpuid(1)) };
        let xsave_enabled = first.ecx & 1 << 27 != 0;
        let xcr0 = if xsave_enabled { extended_control_register() } else { 0 };
        // SAFETY: leaf 7 exists, as checked.
        let seventh = if highest >= 7 { unsafe { __cpuid_count(7, 0).ebx } } else { 0 };
        let avx512 = 1 << 16 | 1 << 17 | 1 << 30;
        Self {
            rdrand: first.ecx & 1 << 30 != 0,
            avx: first.ecx & 1 << 28 != 0 && xcr0 & 0x06 == 0x06,
            avx512: seventh & avx512 == avx512 && xcr0 & 0xE6 == 0xE6,
        }
    }
}

/// XCR0. Only where CPUID says OSXSAVE.
fn extended_control_register() -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: XGETBV with ECX = 0 is allowed in ring 3 where OSXSAVE is set, as the caller checked.
    unsafe { asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high, options(nomem, nostack)) };
    u64::from(low) | u64::from(high) << 32
}

/// A word from RDRAND, or `None` if it has none at the moment. Only where [`Features::rdrand`] says so.
pub fn hardware_random() -> Option<u64> {
    let (word, ok): (u64, u8);
    // SAFETY: where the CPU has no RDRAND this is an exception, which is reported.
    unsafe { asm!("rdrand {}", "setc {}", out(reg) word, out(reg_byte) ok, options(nomem, nostack)) };
    (ok != 0).then_some(word)
}
