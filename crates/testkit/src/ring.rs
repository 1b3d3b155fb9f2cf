//! The driver's side of a split virtqueue (virtio 1.2, section 2.7), in guest memory.

use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

/// A descriptor's flag: the chain goes on.
pub const NEXT: u16 = 1;
/// A descriptor's flag: the device writes.
pub const WRITE: u16 = 2;
/// A descriptor's flag: a table of descriptors.
pub const INDIRECT: u16 = 4;

/// A buffer as a driver names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Guest-physical address.
    pub address: u64,
    /// Length in bytes.
    pub bytes: u32,
    /// Whether the device writes it.
    pub writable: bool,
}

/// A virtqueue as its driver sees it. A copy goes on from the same point, as the driver in a clone does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ring {
    /// Descriptors.
    pub size: u16,
    /// Descriptor area.
    pub descriptors: u64,
    /// Driver area.
    pub driver: u64,
    /// Device area.
    pub device: u64,
    next_descriptor: u16,
    available: u16,
    seen: u16,
}

impl Ring {
    /// A ring of `size` descriptors from `base` on, which is a multiple of 16; it ends before [`Ring::end`].
    pub fn new(base: u64, size: u16) -> Self {
        let descriptors = base;
        let driver = descriptors + 16 * u64::from(size);
        let device = (driver + 6 + 2 * u64::from(size)).next_multiple_of(4);
        Self { size, descriptors, driver, device, next_descriptor: 0, available: 0, seen: 0 }
    }

    /// First address behind the ring.
    pub fn end(&self) -> u64 {
        self.device + 6 + 8 * u64::from(self.size)
    }

    /// Writes one descriptor.
    pub fn describe(&self, memory: &GuestMemoryMmap, index: u16, buffer: Buffer, flags: u16, next: u16) {
        let at = self.descriptors + 16 * u64::from(index);
        let mut bytes = [0; 16];
        bytes[0..8].copy_from_slice(&buffer.address.to_le_bytes());
        bytes[8..12].copy_from_slice(&buffer.bytes.to_le_bytes());
        bytes[12..14].copy_from_slice(&(flags | if buffer.writable { WRITE } else { 0 }).to_le_bytes());
        bytes[14..16].copy_from_slice(&next.to_le_bytes());
        memory.write_slice(&bytes, GuestAddress(at)).expect("the descriptor area is in memory");
    }

    /// Makes the chain at `head` available.
    pub fn offer(&mut self, memory: &GuestMemoryMmap, head: u16) {
        let at = self.driver + 4 + 2 * u64::from(self.available % self.size);
        memory.write_obj(head.to_le(), GuestAddress(at)).expect("the driver area is in memory");
        self.available = self.available.wrapping_add(1);
        self.set_available_index(memory, self.available);
    }

    /// Writes the available index, right or wrong.
    pub fn set_available_index(&self, memory: &GuestMemoryMmap, index: u16) {
        memory.write_obj(index.to_le(), GuestAddress(self.driver + 2)).expect("the driver area is in memory");
    }

    /// Makes a chain of buffers available and returns its head. Descriptors are used round and round: a test that
    /// has more of them under way than the ring holds overwrites its own.
    pub fn push(&mut self, memory: &GuestMemoryMmap, buffers: &[Buffer]) -> u16 {
        let head = self.next_descriptor;
        for (position, buffer) in buffers.iter().enumerate() {
            let next = (self.next_descriptor + 1) % self.size;
            let last = position + 1 == buffers.len();
            self.describe(memory, self.next_descriptor, *buffer, if last { 0 } else { NEXT }, next);
            self.next_descriptor = next;
        }
        self.offer(memory, head);
        head
    }

    /// The next used buffer: head and bytes written.
    pub fn pop(&mut self, memory: &GuestMemoryMmap) -> Option<(u32, u32)> {
        let index: u16 = memory.read_obj(GuestAddress(self.device + 2)).expect("the device area is in memory");
        if u16::from_le(index) == self.seen {
            return None;
        }
        let at = self.device + 4 + 8 * u64::from(self.seen % self.size);
        let [head, bytes]: [u32; 2] = memory.read_obj(GuestAddress(at)).expect("the device area is in memory");
        self.seen = self.seen.wrapping_add(1);
        // With VIRTIO_F_EVENT_IDX, this asks for an interrupt at the next one.
        let used_event = self.driver + 4 + 2 * u64::from(self.size);
        memory.write_obj(self.seen.to_le(), GuestAddress(used_event)).expect("the driver area is in memory");
        Some((u32::from_le(head), u32::from_le(bytes)))
    }
}
