//! What a guest and the monitor agree on.
//!
//! Everything in this crate is a number that both sides must read the same way: guest-physical addresses, I/O
//! ports, interrupt vectors, the layout of the clone page and the requests that the embedded unikernel answers.
//! There is no behaviour here, so that a guest can use it without `std`, an allocator or unsafe code.
//!
//! ```text
//! guest-physical address
//! 0x0000_0000  RAM (the first 3 GiB of it)
//! 0xC000_0000  hole ---------------------------------------------------+
//!   0xD000_0000  virtio-mmio transports, one page each                 |
//!   0xD100_0000  clone page (one per machine, never inherited)         |
//!   0xD110_0000  answer doorbell (write: the clone page has an answer) |
//!   0xD200_0000  family memory (shared by a whole family, if declared) |
//!   0xFEC0_0000  I/O APIC, 0xFEE0_0000 local APIC                      |
//! 0x1_0000_0000  the rest of RAM <-------------------------------------+
//! ```
#![no_std]
#![forbid(unsafe_code)]

pub mod clone_page;
pub mod guest_port;
pub mod layout;
pub mod note;
pub mod request;
