//! Descriptor chains, checked as a whole before a byte of them is touched.
//!
//! The guest can change descriptors at any time: a chain is read once, into host memory, and everything that follows
//! uses that copy.

use super::device::{QueueAccess, ServeError};
use virtio_queue::{QueueOwnedT, QueueT};
use vm_memory::{Address, Bytes, GuestAddress, GuestMemory, GuestMemoryMmap, Permissions};

/// Why a chain is refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ChainError {
    /// It ends in the middle: a loop, an index out of range, an unreadable table, or 4 GiB and more.
    #[error("Chain at descriptor {head} has no end within {limit} descriptors")]
    Endless {
        /// Its head.
        head: u16,
        /// Size of its queue.
        limit: u16,
    },
    /// A buffer is not in guest memory.
    #[error("Chain at descriptor {head} names {bytes} bytes at {address:#x}, which are not in memory")]
    OutOfMemory {
        /// Its head.
        head: u16,
        /// Where.
        address: u64,
        /// How many.
        bytes: u32,
    },
    /// A buffer has the wrong direction for its queue.
    #[error("Chain at descriptor {head} has a buffer of the wrong direction at {address:#x}")]
    Direction {
        /// Its head.
        head: u16,
        /// Where.
        address: u64,
    },
}

/// Who writes into a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// The driver writes, the device reads.
    DeviceReadable,
    /// The device writes, the driver reads.
    DeviceWritable,
}

/// The buffer at hand, as its driver described it when it was read.
#[derive(Debug, Default)]
pub(crate) struct Chain {
    head: u16,
    segments: Vec<(GuestAddress, u32)>,
    bytes: u32,
}

impl Chain {
    /// With room for chains of a queue of `size` descriptors.
    pub(crate) fn with_capacity(size: u16) -> Self {
        Self { head: 0, segments: Vec::with_capacity(usize::from(size)), bytes: 0 }
    }

    /// Length in bytes.
    pub(crate) fn bytes(&self) -> u32 {
        self.bytes
    }

    /// The pieces of guest memory from `offset` on, together at most `max` bytes.
    fn pieces(&self, offset: u32, max: usize) -> impl Iterator<Item = (GuestAddress, usize)> {
        let mut skip = offset;
        let mut left = max;
        self.segments.iter().map_while(move |&(address, bytes)| {
            let skipped = skip.min(bytes);
            skip -= skipped;
            let count = usize::try_from(bytes - skipped).unwrap_or(left).min(left);
            left -= count;
            // The last address of a segment was checked, and so cannot wrap.
            (count > 0 || left > 0).then(|| (address.unchecked_add(u64::from(skipped)), count))
        })
    }

    /// Reads from `offset` of the chain into `buffer`; returns how many bytes there were.
    pub(crate) fn read(&self, memory: &GuestMemoryMmap, offset: u32, buffer: &mut [u8]) -> Result<usize, ServeError> {
        let mut done = 0;
        for (address, count) in self.pieces(offset, buffer.len()) {
            let target = &mut buffer[done..done + count];
            memory.read_slice(target, address).map_err(|_| self.out_of_memory(address, count))?;
            done += count;
        }
        Ok(done)
    }

    /// Writes `bytes` at the start of the chain; returns how many found room.
    pub(crate) fn write(&self, memory: &GuestMemoryMmap, bytes: &[u8]) -> Result<usize, ServeError> {
        let mut done = 0;
        for (address, count) in self.pieces(0, bytes.len()) {
            let source = &bytes[done..done + count];
            memory.write_slice(source, address).map_err(|_| self.out_of_memory(address, count))?;
            done += count;
        }
        Ok(done)
    }

    fn out_of_memory(&self, address: GuestAddress, count: usize) -> ServeError {
        let bytes = u32::try_from(count).unwrap_or(u32::MAX);
        ServeError::Chain(ChainError::OutOfMemory { head: self.head, address: address.0, bytes })
    }
}

impl QueueAccess<'_> {
    /// Reads the next available chain into [`QueueAccess::chain`] but leaves it in the queue, so that a chain which
    /// is half done is still there after a save. `false`: nothing is available.
    pub(crate) fn peek(&mut self, direction: Direction) -> Result<bool, ServeError> {
        let next = self.queue.next_avail();
        let size = self.queue.size();
        let mut available = self.queue.iter(self.memory).map_err(ServeError::Queue)?;
        let Some(descriptors) = available.next() else {
            // Nothing there, or a ring that cannot be read; only the first of these is harmless.
            let order = std::sync::atomic::Ordering::Acquire;
            let index = self.queue.avail_idx(self.memory, order).map_err(ServeError::Queue)?;
            let unreadable = index.0 != next;
            return if unreadable { Err(ServeError::Queue(virtio_queue::Error::InvalidChain)) } else { Ok(false) };
        };
        let head = descriptors.head_index();
        let chain = &mut *self.chain;
        chain.head = head;
        chain.bytes = 0;
        chain.segments.clear();
        let mut ends = false;
        // Indirect tables are not offered; `virtio_queue` follows them all the same, and this bounds them.
        for descriptor in descriptors.take(usize::from(size)) {
            let (address, bytes) = (descriptor.addr(), descriptor.len());
            if descriptor.is_write_only() != (direction == Direction::DeviceWritable) {
                return Err(ServeError::Chain(ChainError::Direction { head, address: address.0 }));
            }
            let access = if descriptor.is_write_only() { Permissions::Write } else { Permissions::Read };
            if !GuestMemory::check_range(self.memory, address, bytes as usize, access) {
                return Err(ServeError::Chain(ChainError::OutOfMemory { head, address: address.0, bytes }));
            }
            ends = !descriptor.has_next();
            chain.bytes = chain.bytes.saturating_add(bytes);
            chain.segments.push((address, bytes));
        }
        self.queue.set_next_avail(next);
        if ends { Ok(true) } else { Err(ServeError::Chain(ChainError::Endless { head, limit: size })) }
    }

    /// Gives the chain back that was peeked last, with `bytes` written into it.
    pub(crate) fn finish(&mut self, bytes: u32) -> Result<(), ServeError> {
        self.queue.set_next_avail(self.queue.next_avail().wrapping_add(1));
        *self.used = true;
        self.queue.add_used(self.memory, self.chain.head, bytes).map_err(ServeError::Queue)
    }
}
