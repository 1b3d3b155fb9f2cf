//! Where ports and addresses lead.
//!
//! Built once with the machine and never changed: device addresses are fixed by the class, and no interrupt line or
//! doorbell is ever reassigned while a machine lives.

use ramet_abi::guest_port;
use ramet_abi::layout::{PAGE_BYTES, SERIAL_PORT, SERIAL_PORTS, VIRTIO_MMIO_BASE, VIRTIO_MMIO_COUNT};
use ramet_devices::{BuiltPart, GuestCall};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A part that vCPU threads and the event loop reach alike.
pub(crate) type SharedPart = Arc<Mutex<BuiltPart>>;

/// A part's lock, also after a panic elsewhere: registers are plain values, and every access leaves them whole.
pub(crate) fn lock(part: &SharedPart) -> MutexGuard<'_, BuiltPart> {
    part.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All that answers to ports and addresses.
#[derive(Debug, Default)]
pub(crate) struct Bus {
    ports: Vec<(Range<u16>, SharedPart)>,
    /// Index is the transport's number.
    transports: Vec<SharedPart>,
}

impl Bus {
    /// Puts a part where it belongs; `transports` so far decides the address of a part in memory.
    pub(crate) fn attach(&mut self, part: &SharedPart) {
        match &*lock(part) {
            BuiltPart::Mmio(_) => self.transports.push(Arc::clone(part)),
            BuiltPart::Port(_) => self.ports.push((SERIAL_PORT..SERIAL_PORT + SERIAL_PORTS, Arc::clone(part))),
            BuiltPart::GuestPort(_) => {
                self.ports.push((guest_port::BASE..guest_port::BASE + guest_port::PORTS, Arc::clone(part)));
            }
            BuiltPart::ClonePage(_) => {}
        }
    }

    fn port(&self, port: u16) -> Option<(u16, &SharedPart)> {
        self.ports.iter().find(|(range, _)| range.contains(&port)).map(|(range, part)| (port - range.start, part))
    }

    fn transport(&self, address: u64) -> Option<(u64, &SharedPart)> {
        let offset = address.checked_sub(VIRTIO_MMIO_BASE)?;
        let number = offset / PAGE_BYTES;
        if number >= VIRTIO_MMIO_COUNT {
            return None;
        }
        self.transports.get(usize::try_from(number).ok()?).map(|part| (offset % PAGE_BYTES, part))
    }

    /// A read of a port. What nobody answers reads as ones, as on a PC.
    pub(crate) fn port_read(&self, port: u16, data: &mut [u8]) -> Option<GuestCall> {
        data.fill(0xFF);
        let (offset, part) = self.port(port)?;
        match &mut *lock(part) {
            BuiltPart::Port(part) => part.port_read(offset, data),
            BuiltPart::GuestPort(part) => return part.read(offset, data),
            BuiltPart::Mmio(_) | BuiltPart::ClonePage(_) => {}
        }
        None
    }

    /// A write to a port. What nobody takes is ignored.
    pub(crate) fn port_write(&self, port: u16, data: &[u8]) -> Option<GuestCall> {
        let (offset, part) = self.port(port)?;
        match &mut *lock(part) {
            BuiltPart::Port(part) => part.port_write(offset, data),
            BuiltPart::GuestPort(part) => return part.write(offset, data),
            BuiltPart::Mmio(_) | BuiltPart::ClonePage(_) => {}
        }
        None
    }

    /// A read of an address without memory.
    pub(crate) fn mmio_read(&self, address: u64, data: &mut [u8]) {
        data.fill(0xFF);
        if let Some((offset, part)) = self.transport(address)
            && let BuiltPart::Mmio(part) = &mut *lock(part)
        {
            part.mmio_read(offset, data);
        }
    }

    /// A write to an address without memory.
    pub(crate) fn mmio_write(&self, address: u64, data: &[u8]) {
        if let Some((offset, part)) = self.transport(address)
            && let BuiltPart::Mmio(part) = &mut *lock(part)
        {
            part.mmio_write(offset, data);
        }
    }
}
