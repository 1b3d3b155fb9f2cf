//! The runtime: what ring 3 needs of the machine, behind safe interfaces.
//!
//! `unsafe` is confined to the modules that touch the hardware or raw memory: [`cpu`], [`memory`], [`mmio`],
//! [`ports`], [`registers`], [`clone_page`], [`family`]; [`entry`] and [`trap`] only for their symbols; everything above them is safe code.
//!
//! Deliberately absent: an allocator (no part needs one), threads, a file system.

pub mod clone_page;
pub mod cpu;
pub mod entry;
pub mod family;
pub mod guest_port;
pub mod local_apic;
pub mod memory;
pub mod mmio;
pub mod ports;
pub mod random;
pub mod registers;
pub mod serial;
pub mod time;
pub mod trap;
pub mod virtio;
