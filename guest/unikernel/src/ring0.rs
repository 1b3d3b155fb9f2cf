//! The ring 0 part: entry, descriptor tables, interrupt handlers (all in `ring0.s`), and the gates to it.
//!
//! Everything else runs in ring 3, because a KVM without hardware virtualization emulates ring 0 one instruction at
//! a time. Ring 3 enters ring 0 by a deliberate page fault at [`GATE_BASE`] + gate number; the handler does its few
//! instructions and returns behind the faulting instruction. Not by INT3 or SYSCALL: some KVMs lose the first across
//! a snapshot and do not change rings for the second.
//!
//! Deliberately absent: page tables (the loader's identity map stays), a scheduler, any decision.
#![allow(unsafe_code)]

use core::arch::{asm, global_asm};
use core::sync::atomic::AtomicU64;

use ramet_abi::{guest_port, layout, note};

/// Most vCPUs that the static tables hold; further ones stop at their first instruction.
pub const MAX_VCPUS: usize = 32;
/// Vector of the local APIC's spurious interrupt; its low four bits must be set.
pub const SPURIOUS_VECTOR: u32 = 0x2F;
/// Vector by which vCPU `n` is woken is `WAKE_VECTOR + n`.
pub const WAKE_VECTOR: u32 = 0x50;

/// A page fault here, with a gate's number in the low byte, is a call of that gate. Beyond any RAM, below the end of
/// the lower half of the address space.
const GATE_BASE: u64 = 1 << 46;
const GATE_NOTHING: u64 = 0;
const GATE_WAIT: u64 = 1;
const GATE_WRITE_PORTS: u64 = 2;
const GATE_SPIN: u64 = 3;
const GATE_TRIPLE_FAULT: u64 = 4;

/// MSR_KVM_SYSTEM_TIME_NEW: the address, with bit 0 set, at which KVM keeps [`clock`] up to date.
const CLOCK_MSR: u32 = 0x4B56_4D01;

/// Address at which a fault goes to ring 0 and comes back without doing anything.
pub const NOTHING_ADDRESS: u64 = GATE_BASE | GATE_NOTHING;

const _: () = assert!(note::NAME.len() == 6);
const _: () = assert!(layout::VECTOR_BASE as u32 == SPURIOUS_VECTOR + 1);
const _: () = assert!(guest_port::BASE > layout::SERIAL_PORT && guest_port::BASE.is_multiple_of(8));

global_asm!(
    include_str!("ring0.s"),
    NOTE_NAME_BYTES = const note::NAME.len(),
    NOTE_TYPE = const note::TYPE_START,
    NOTE_FLAGS = const note::START_ALL_VCPUS,
    MAX_VCPUS = const MAX_VCPUS,
    CLOCK_MSR = const CLOCK_MSR,
    LINES = const layout::GSI_COUNT,
    LINE_VECTOR = const layout::VECTOR_BASE,
    SPURIOUS_VECTOR = const SPURIOUS_VECTOR,
    WAKE_VECTOR = const WAKE_VECTOR,
    GATE_WAIT = const GATE_WAIT,
    GATE_WRITE_PORTS = const GATE_WRITE_PORTS,
    GATE_SPIN = const GATE_SPIN,
    GATE_TRIPLE_FAULT = const GATE_TRIPLE_FAULT,
    SERIAL_PORT = const layout::SERIAL_PORT,
    GUEST_PORT = const guest_port::BASE,
    GUEST_PORTS = const guest_port::PORTS,
    options(att_syntax)
);

// SAFETY: ring0.s defines these symbols with these types, initialized, and nothing but atomic increments (or, for
// the clock page, KVM) writes them.
unsafe extern "C" {
    safe static interrupt_counters: [AtomicU64; layout::GSI_COUNT as usize];
    safe static wake_counters: [AtomicU64; MAX_VCPUS];
    safe static clock_page: [AtomicU64; 4];
}

/// How many interrupts of the clone page's line have arrived.
pub fn clone_page_interrupts() -> &'static AtomicU64 {
    &interrupt_counters[layout::CLONE_PAGE_GSI as usize]
}

/// How many times this vCPU has been woken; `None` if there is no such vCPU.
pub fn wakes(vcpu: usize) -> Option<&'static AtomicU64> {
    wake_counters.get(vcpu)
}

/// The 32 bytes in which KVM describes its clock to vCPU 0 (`struct pvclock_vcpu_time_info`).
pub fn clock() -> &'static [AtomicU64; 4] {
    &clock_page
}

// Each gate is called by REX.W A1 moffs64: the handler relies on its length of 10 bytes.

/// Halts until an interrupt, unless `counter` has already moved on from `seen`.
pub fn wait(counter: &AtomicU64, seen: u64) {
    // SAFETY: the gate reads the counter, clobbers RAX, and returns here with all else as it was.
    unsafe {
        asm!(".byte 0x48, 0xa1", ".quad {gate}", gate = const GATE_BASE | GATE_WAIT,
            in("rdi") counter.as_ptr(), in("rsi") seen, out("rax") _);
    }
}

/// Writes `value` to `count` I/O ports, one byte each, from `first` on; nothing for a count of 0.
pub fn write_ports(first: u16, count: u16, value: u8) {
    if count == 0 {
        return;
    }
    // SAFETY: the gate executes OUT in a loop. What devices make of it is the point of the caller's test; devices
    // reach memory only through queues, which the caller resets.
    unsafe {
        asm!(".byte 0x48, 0xa1", ".quad {gate}", gate = const GATE_BASE | GATE_WRITE_PORTS,
            in("al") value, inout("edx") u32::from(first) => _, inout("ecx") u32::from(count) => _);
    }
}

/// Spins in ring 0 with interrupts off, for ever.
pub fn spin_forever() -> ! {
    // SAFETY: the gate does not return.
    unsafe {
        asm!(".byte 0x48, 0xa1", ".quad {gate}", gate = const GATE_BASE | GATE_SPIN, options(noreturn));
    }
}

/// Ends the machine by a triple fault.
pub fn triple_fault() -> ! {
    // SAFETY: the gate does not return.
    unsafe {
        asm!(".byte 0x48, 0xa1", ".quad {gate}", gate = const GATE_BASE | GATE_TRIPLE_FAULT, options(noreturn));
    }
}
