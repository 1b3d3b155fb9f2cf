//! 32-bit accesses to device registers in the hole below 4 GiB.
#![allow(unsafe_code)]

use ramet_abi::layout::{HOLE_END, HOLE_START};

fn register(address: u64) -> *mut u32 {
    assert!(
        (HOLE_START..HOLE_END).contains(&address) && address.is_multiple_of(4),
        "{address:#x} is no device register"
    );
    address as *mut u32
}

/// Reads a register.
pub fn read(address: u64) -> u32 {
    // SAFETY: the hole is identity-mapped and holds no memory that Rust knows of.
    unsafe { register(address).read_volatile() }
}

/// Writes a register.
pub fn write(address: u64, value: u32) {
    // SAFETY: as for reading. A device reaches memory only through queues, whose memory is made of atomics.
    unsafe { register(address).write_volatile(value) }
}
