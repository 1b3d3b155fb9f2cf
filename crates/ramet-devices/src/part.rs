//! What every part can do, and how it is attached to a machine.

use crate::{ClonePage, GuestPort};
use ramet_state::PartState;
use std::os::fd::BorrowedFd;

/// What a part waits for on a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Something to read.
    Readable,
    /// Something to read, or room to write.
    ReadableAndWritable,
}

/// A descriptor whose events belong to a part.
///
/// To be registered **edge-triggered** (EPOLLET), once, when the part joins its event loop: the set stays the same
/// for the part's whole life, so that no path that matters changes registrations.
#[derive(Clone, Copy, Debug)]
pub struct EventSource<'a> {
    /// The descriptor.
    pub fd: BorrowedFd<'a>,
    /// What to hand to [`Part::on_event`].
    pub token: u32,
    /// What to wait for.
    pub interest: Interest,
}

/// Something that a part counts, for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counter {
    /// What is counted, with its unit last.
    pub name: &'static str,
    /// How much, since the part was built.
    pub value: u64,
}

/// A device of one machine; the crate's documentation shows its life.
pub trait Part: Send {
    /// Which device of the machine; unique in it.
    fn id(&self) -> &str;
    /// Stops all work and parks what is unfinished. Idempotent.
    fn quiesce(&mut self);
    /// The registers, as the guest sees them now, and the roles of the host's resources. Has no side effects.
    fn save(&self) -> PartState;
    /// Starts work, as if every queue had been kicked and every socket had become ready; raises pending interrupts
    /// again. Idempotent.
    fn resume(&mut self);
    /// Descriptors to wait for; constant.
    fn event_sources(&self) -> Vec<EventSource<'_>>;
    /// Does a bounded amount of work for the event source with this token. Ignored while quiesced: resuming makes
    /// up for it.
    fn on_event(&mut self, token: u32);
    /// What it counts.
    fn counters(&self) -> Vec<Counter>;
}

/// A part with registers in memory.
pub trait MmioPart: Part {
    /// Reads `data.len()` bytes at `offset` from its first address. Always fills all of `data`.
    fn mmio_read(&mut self, offset: u64, data: &mut [u8]);
    /// Writes `data` at `offset` from its first address.
    fn mmio_write(&mut self, offset: u64, data: &[u8]);
}

/// A part with registers in I/O ports.
pub trait PortPart: Part {
    /// Reads `data.len()` bytes at `offset` from its first port. Always fills all of `data`.
    fn port_read(&mut self, offset: u16, data: &mut [u8]);
    /// Writes `data` at `offset` from its first port.
    fn port_write(&mut self, offset: u16, data: &[u8]);
}

/// A part and the way in which it is attached. Parts that a machine must know by name have a variant of their own.
pub enum BuiltPart {
    /// On the memory bus.
    Mmio(Box<dyn MmioPart>),
    /// On the port bus.
    Port(Box<dyn PortPart>),
    /// On the port bus; its accesses become calls that the machine carries out.
    GuestPort(GuestPort),
    /// A page of memory with an interrupt.
    ClonePage(ClonePage),
}

impl BuiltPart {
    /// What all parts can do.
    pub fn part(&self) -> &dyn Part {
        match self {
            Self::Mmio(part) => part.as_ref(),
            Self::Port(part) => part.as_ref(),
            Self::GuestPort(part) => part,
            Self::ClonePage(part) => part,
        }
    }

    /// What all parts can do.
    pub fn part_mut(&mut self) -> &mut dyn Part {
        match self {
            Self::Mmio(part) => part.as_mut(),
            Self::Port(part) => part.as_mut(),
            Self::GuestPort(part) => part,
            Self::ClonePage(part) => part,
        }
    }
}

impl std::fmt::Debug for BuiltPart {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let bus = match self {
            Self::Mmio(_) => "Mmio",
            Self::Port(_) => "Port",
            Self::GuestPort(_) => "GuestPort",
            Self::ClonePage(_) => "ClonePage",
        };
        formatter.debug_tuple(bus).field(&self.part().id()).finish()
    }
}
