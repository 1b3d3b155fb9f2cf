//! virtio-console (virtio 1.2, section 5.3): port 0, output only: the receive queue is left alone.

use core::sync::atomic::{AtomicU8, Ordering};

use super::queue::{Buffer, QueueMemory};
use super::transport::Transport;

/// The device's type.
pub const DEVICE_ID: u32 = 3;
const TRANSMIT: u32 = 1;
const BUFFER_BYTES: usize = 2048;

static TRANSMIT_QUEUE: QueueMemory = QueueMemory::new();
static BUFFER: [AtomicU8; BUFFER_BYTES] = [const { AtomicU8::new(0) }; BUFFER_BYTES];

/// A started console. There is at most one, as its memory is static.
pub struct Console {
    transport: Transport,
    filled: usize,
}

impl Console {
    pub(super) fn start(transport: Transport) -> Option<Self> {
        transport.start(TRANSMIT, &TRANSMIT_QUEUE)?;
        Some(Self { transport, filled: 0 })
    }

    /// Writes bytes, and returns when the device has taken them all.
    pub fn write(&mut self, bytes: impl Iterator<Item = u8>) {
        for byte in bytes {
            self.put(byte);
        }
        self.flush();
    }

    fn put(&mut self, byte: u8) {
        BUFFER[self.filled].store(byte, Ordering::Relaxed);
        self.filled += 1;
        if self.filled == BUFFER_BYTES {
            self.flush();
        }
    }

    /// Hands what has been put so far to the device, and waits until it has taken it.
    fn flush(&mut self) {
        if self.filled > 0 {
            let buffer = Buffer { address: BUFFER.as_ptr() as u64, bytes: self.filled as u32, device_writes: false };
            TRANSMIT_QUEUE.transfer(self.transport, TRANSMIT, buffer);
            self.filled = 0;
        }
    }
}

/// For formatted text, which comes in pieces: sent line by line.
impl core::fmt::Write for Console {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        for byte in text.bytes() {
            self.put(byte);
            if byte == b'\n' {
                self.flush();
            }
        }
        Ok(())
    }
}
