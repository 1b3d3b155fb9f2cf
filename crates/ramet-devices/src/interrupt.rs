//! How a part interrupts its guest.

use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};

/// A line or a message: the part cannot tell.
///
/// Every raise is an edge; raises that the guest has not seen yet may merge.
pub trait Interrupt: Send + Sync {
    /// Interrupts the guest.
    fn raise(&self);
}

/// An eventfd that the machine has made an irqfd.
#[derive(Debug)]
pub struct EventFdInterrupt {
    eventfd: OwnedFd,
}

impl EventFdInterrupt {
    /// Raises by adding 1 to `eventfd`.
    pub fn new(eventfd: OwnedFd) -> Self {
        Self { eventfd }
    }
}

impl Interrupt for EventFdInterrupt {
    fn raise(&self) {
        ring(&self.eventfd, "interrupt");
    }
}

/// Adds 1 to an eventfd.
pub(crate) fn ring(eventfd: &impl AsFd, what: &'static str) {
    loop {
        match rustix::io::write(eventfd, &1u64.to_ne_bytes()) {
            Err(Errno::INTR) => {}
            // A full counter is as good as one more.
            Ok(_) | Err(Errno::AGAIN) => return,
            Err(error) => {
                tracing::error!(%error, "Eventfd of an {what} cannot be written");
                return;
            }
        }
    }
}

/// Takes an eventfd's count away; one that is 0 already is left at that.
pub(crate) fn drain(eventfd: &impl AsFd) {
    let mut count = [0; 8];
    loop {
        match rustix::io::read(eventfd, &mut count) {
            Err(Errno::INTR) => {}
            Ok(_) | Err(Errno::AGAIN) => return,
            Err(error) => {
                tracing::error!(%error, "Eventfd of a doorbell cannot be read");
                return;
            }
        }
    }
}
