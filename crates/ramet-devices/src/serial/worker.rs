//! Moving bytes between the UART and its socket.

use super::Serial;
use super::registers::{MCR_LOOP, MCR_OFFSET};
use crate::backend::{Backend, Received, Sent};
use std::collections::VecDeque;
use std::io::{self, Write};

/// Most bytes of output that wait for the host.
pub(super) const OUTPUT_MAX_BYTES: usize = 64 << 10;

/// Output on its way to the host.
#[derive(Debug)]
pub(crate) struct Output {
    backend: Backend,
    waiting: VecDeque<u8>,
    dropped_bytes: u64,
}

impl Output {
    pub(super) fn new(backend: Backend) -> Self {
        Self { backend, waiting: VecDeque::new(), dropped_bytes: 0 }
    }

    pub(super) fn backend(&self) -> &Backend {
        &self.backend
    }

    pub(super) fn dropped_bytes(&self) -> u64 {
        self.dropped_bytes
    }

    /// Gives the host as much as it takes now.
    pub(super) fn flush_to_host(&mut self) {
        while !self.waiting.is_empty() {
            match self.backend.send(self.waiting.as_slices().0) {
                Sent::Taken(count) => drop(self.waiting.drain(..count)),
                Sent::Full => return,
                Sent::Gone => {
                    self.dropped_bytes = self.dropped_bytes.saturating_add(self.waiting.len() as u64);
                    self.waiting.clear();
                }
            }
        }
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = OUTPUT_MAX_BYTES - self.waiting.len();
        let (accepted, dropped) = bytes.split_at(bytes.len().min(room));
        self.waiting.extend(accepted);
        self.dropped_bytes = self.dropped_bytes.saturating_add(dropped.len() as u64);
        // To the UART all are written: it has no way to say otherwise.
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.flush_to_host();
        Ok(())
    }
}

impl Serial {
    /// Takes from the socket what fits the FIFO.
    pub(super) fn fill_fifo(&mut self) {
        if self.quiesced {
            return;
        }
        while self.input_ready && self.uart.fifo_capacity() > 0 && !self.is_loop() {
            let mut buffer = [0; 64];
            let room = self.uart.fifo_capacity().min(buffer.len());
            match self.backend().receive(&mut buffer[..room]) {
                Received::Bytes(count) => {
                    if let Err(error) = self.uart.enqueue_raw_bytes(&buffer[..count]) {
                        tracing::error!(%error, count, "Serial port refused input that fits");
                    }
                }
                Received::Empty | Received::Ended => self.input_ready = false,
            }
        }
    }

    /// In loopback the receiver is connected to the transmitter, and input has to wait.
    fn is_loop(&mut self) -> bool {
        self.uart.read(MCR_OFFSET) & MCR_LOOP != 0
    }
}
