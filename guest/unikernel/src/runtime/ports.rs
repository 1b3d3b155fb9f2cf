//! I/O ports: those that the I/O bitmap in ring0.s opens to ring 3 (serial device, guest port).
#![allow(unsafe_code)]

use core::arch::asm;

/// OUT, 32 bits. Not `nomem`: the machine may be forked or paused by it.
pub fn write_long(port: u16, value: u32) {
    // SAFETY: a closed port is an exception that is reported; an open one belongs to the monitor.
    unsafe { asm!("out dx, eax", in("dx") port, in("eax") value, options(nostack, preserves_flags)) }
}

/// IN, 32 bits. Not `nomem`: the machine may be forked by it.
pub fn read_long(port: u16) -> u32 {
    let value;
    // SAFETY: as for writing.
    unsafe { asm!("in eax, dx", in("dx") port, out("eax") value, options(nostack, preserves_flags)) }
    value
}

/// OUT, 8 bits.
pub fn write_byte(port: u16, value: u8) {
    // SAFETY: as for 32 bits.
    unsafe { asm!("out dx, al", in("dx") port, in("al") value, options(nostack, preserves_flags)) }
}
