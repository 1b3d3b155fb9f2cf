//! A split virtqueue (virtio 1.2, section 2.7) with one buffer in flight.
//!
//! Its memory is made of atomics, because the device writes it concurrently.

use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

use super::transport::Transport;

const SIZE: usize = 4;
/// Descriptor flag: the device writes the buffer.
const DESCRIPTOR_WRITE: u32 = 2;
/// Available ring flag: the driver polls and wants no interrupts.
const AVAILABLE_NO_INTERRUPT: u16 = 1;

/// The three parts of a queue.
#[repr(C, align(64))]
pub struct QueueMemory {
    /// u64 address; u32 length, u16 flags, u16 next.
    descriptors: [[AtomicU64; 2]; SIZE],
    available_flags: AtomicU16,
    available_index: AtomicU16,
    available_ring: [AtomicU16; SIZE],
    available_event: AtomicU16,
    used_alignment: AtomicU16,
    used_flags: AtomicU16,
    used_index: AtomicU16,
    /// u32 descriptor, u32 bytes written.
    used_ring: [[AtomicU32; 2]; SIZE],
    used_event: AtomicU16,
}

impl QueueMemory {
    /// Entries.
    pub const SIZE: u32 = SIZE as u32;

    /// An empty queue.
    pub const fn new() -> Self {
        Self {
            descriptors: [const { [const { AtomicU64::new(0) }; 2] }; SIZE],
            available_flags: AtomicU16::new(0),
            available_index: AtomicU16::new(0),
            available_ring: [const { AtomicU16::new(0) }; SIZE],
            available_event: AtomicU16::new(0),
            used_alignment: AtomicU16::new(0),
            used_flags: AtomicU16::new(0),
            used_index: AtomicU16::new(0),
            used_ring: [const { [const { AtomicU32::new(0) }; 2] }; SIZE],
            used_event: AtomicU16::new(0),
        }
    }

    /// Makes the queue empty again, while the device is reset.
    pub(super) fn clear(&self) {
        self.available_flags.store(AVAILABLE_NO_INTERRUPT, Ordering::Relaxed);
        self.available_index.store(0, Ordering::Relaxed);
        self.available_event.store(0, Ordering::Relaxed);
        self.used_alignment.store(0, Ordering::Relaxed);
        self.used_flags.store(0, Ordering::Relaxed);
        self.used_index.store(0, Ordering::Relaxed);
        self.used_event.store(0, Ordering::Relaxed);
    }

    pub(super) fn descriptors_address(&self) -> u64 {
        (&raw const self.descriptors) as u64
    }

    pub(super) fn available_address(&self) -> u64 {
        (&raw const self.available_flags) as u64
    }

    pub(super) fn used_address(&self) -> u64 {
        (&raw const self.used_flags) as u64
    }

    /// Gives the device a buffer and waits until it has used it. Returns how many bytes the device wrote, by its own
    /// account.
    pub(super) fn transfer(&self, transport: Transport, number: u32, buffer: Buffer) -> u32 {
        let flags = if buffer.device_writes { u64::from(DESCRIPTOR_WRITE) } else { 0 };
        let [address, rest] = &self.descriptors[0];
        address.store(buffer.address, Ordering::Relaxed);
        rest.store(u64::from(buffer.bytes) | flags << 32, Ordering::Relaxed);
        let index = self.available_index.load(Ordering::Relaxed);
        self.available_ring[usize::from(index) % SIZE].store(0, Ordering::Relaxed);
        self.available_index.store(index.wrapping_add(1), Ordering::Release);
        fence(Ordering::SeqCst);
        transport.notify(number);
        while self.used_index.load(Ordering::Acquire) != index.wrapping_add(1) {
            core::hint::spin_loop();
        }
        self.used_ring[usize::from(index) % SIZE][1].load(Ordering::Relaxed)
    }
}

/// A buffer for a device, in memory that lives for ever.
pub(super) struct Buffer {
    pub(super) address: u64,
    pub(super) bytes: u32,
    pub(super) device_writes: bool,
}
