//! Misbehaviour on request, for tests of what a monitor survives.

use ramet_abi::layout::{CLONE_PAGE_BASE, FAMILY_BASE, FAMILY_MAX_BYTES, HOLE_START, PAGE_BYTES, VIRTIO_MMIO_BASE};
use ramet_abi::{guest_port, request};

use crate::ring0;
use crate::runtime::virtio::transport::{REGISTER_BYTES, Transport};
use crate::runtime::{mmio, virtio};

const GARBAGE_BYTE: u8 = 0xA5;
const GARBAGE_WORD: u32 = 0xDEAD_BEE7;
/// End of the hole's part that is written: the I/O APIC.
const GARBAGE_END: u64 = 0xFEC0_0000;
/// Pages from the start of the device area that are each written; of the rest one in [`SPARSE_PAGES`] is.
const DENSE_PAGES: u64 = 256;
const SPARSE_PAGES: u64 = 512;
/// Ports from 0 that are each written; of the rest one in [`SPARSE_PORTS`] is.
const DENSE_PORTS: u16 = 0x1000;
const SPARSE_PORTS: u16 = 64;

/// Misbehaves. Returns only from [`request::CRASH_GARBAGE`], with the devices to use from then on; `None` if there is
/// no such kind.
pub fn crash(kind: u64) -> Option<virtio::Devices> {
    match kind {
        request::CRASH_TRIPLE_FAULT => ring0::triple_fault(),
        request::CRASH_SPIN => ring0::spin_forever(),
        request::CRASH_PANIC => panic!("asked to panic"),
        request::CRASH_GARBAGE => {
            write_ports();
            write_hole();
            write_transports();
            Some(virtio::Devices::start())
        }
        _ => None,
    }
}

/// All low ports and some of the others. Not those that end this machine, and not the whole space: every write is an
/// exit.
fn write_ports() {
    let [first, second] = [guest_port::DONE, guest_port::EXIT];
    ring0::write_ports(0, first, GARBAGE_BYTE);
    ring0::write_ports(first + 4, second - first - 4, GARBAGE_BYTE);
    ring0::write_ports(second + 4, DENSE_PORTS - second - 4, GARBAGE_BYTE);
    for port in (DENSE_PORTS..=u16::MAX).step_by(usize::from(SPARSE_PORTS)) {
        ring0::write_ports(port, 1, GARBAGE_BYTE);
    }
}

/// Pages of the hole, but for the memory in it.
fn write_hole() {
    let dense = (VIRTIO_MMIO_BASE..).step_by(PAGE_BYTES as usize).take(DENSE_PAGES as usize);
    let sparse = (HOLE_START..GARBAGE_END).step_by((PAGE_BYTES * SPARSE_PAGES) as usize);
    for address in dense.chain(sparse) {
        let memory = address == CLONE_PAGE_BASE || (FAMILY_BASE..FAMILY_BASE + FAMILY_MAX_BYTES).contains(&address);
        if !memory {
            mmio::write(address, GARBAGE_WORD);
        }
    }
}

/// Every register of every device.
fn write_transports() {
    for transport in Transport::all() {
        for register in (0..REGISTER_BYTES).step_by(4) {
            mmio::write(transport.base() + register, GARBAGE_WORD);
        }
    }
}
