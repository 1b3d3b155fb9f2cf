//! The entropy device, virtio-rng (virtio 1.2, section 5.4).

use core::sync::atomic::{AtomicU64, Ordering};

use super::queue::{Buffer, QueueMemory};
use super::transport::Transport;

/// The device's type.
pub const DEVICE_ID: u32 = 4;
const REQUEST: u32 = 0;
const WORDS: usize = 4;

static REQUEST_QUEUE: QueueMemory = QueueMemory::new();
static BUFFER: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];

/// A started entropy device. There is at most one, as its memory is static.
pub struct Entropy {
    transport: Transport,
}

impl Entropy {
    pub(super) fn start(transport: Transport) -> Option<Self> {
        transport.start(REQUEST, &REQUEST_QUEUE)?;
        Some(Self { transport })
    }

    /// 32 bytes from the device, as four words; `None` if it gave fewer.
    pub fn words(&mut self) -> Option<[u64; WORDS]> {
        let bytes = (WORDS * 8) as u32;
        let buffer = Buffer { address: BUFFER.as_ptr() as u64, bytes, device_writes: true };
        let written = REQUEST_QUEUE.transfer(self.transport, REQUEST, buffer);
        let words = core::array::from_fn(|index| BUFFER[index].swap(0, Ordering::Relaxed));
        (written >= bytes).then_some(words)
    }
}
