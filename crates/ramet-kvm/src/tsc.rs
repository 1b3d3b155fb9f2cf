//! The host's time-stamp counter.
#![allow(unsafe_code)]

/// Reads the host's time-stamp counter, for stamps that a guest's own RDTSC on a host without TSC offsets, or another
/// process, can be compared with. Not ordered against other instructions.
pub fn read_tsc() -> u64 {
    // SAFETY: every x86-64 processor has RDTSC; without permission (PR_SET_TSC) it is a signal, not undefined.
    unsafe { core::arch::x86_64::_rdtsc() }
}
