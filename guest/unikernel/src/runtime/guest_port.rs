//! The guest port: fork(), ready, done, mark, exit, and doorbells of other machines.

use ramet_abi::guest_port::*;

use super::clone_page::ClonePage;
use super::ports;
use crate::ring0;

/// Forks this machine, and returns on both sides: the number of the first child in the parent, 0 in a child, and a
/// value with [`ERROR_BIT`] for a refusal.
pub fn fork(page: ClonePage, children: u32, flags: u32) -> u32 {
    ports::write_long(ARGUMENT_0, children);
    ports::write_long(ARGUMENT_1, flags);
    let result = ports::read_long(FORK);
    page.note_first_instruction();
    result
}

/// Becomes a frozen template. Returns 0 in every child, or a refusal.
pub fn ready(page: ClonePage) -> u32 {
    let result = ports::read_long(READY);
    page.note_first_instruction();
    result
}

/// Says that the job is done. Returns if the supervisor lets the machine go on.
pub fn done(status: u32) {
    ports::write_long(DONE, status);
}

/// Reports a mark.
pub fn mark(value: u32) {
    ports::write_long(MARK, value);
}

/// Raises the clone-page interrupt of another machine.
pub fn ring(number: u32) {
    ports::write_long(DOORBELL, number);
}

/// Ends this machine.
pub fn exit(status: u8) -> ! {
    ports::write_long(EXIT, u32::from(status));
    // The monitor may take a moment to stop the other vCPUs, or this one.
    let interrupts = ring0::clone_page_interrupts();
    loop {
        ring0::wait(interrupts, interrupts.load(core::sync::atomic::Ordering::Relaxed));
    }
}
