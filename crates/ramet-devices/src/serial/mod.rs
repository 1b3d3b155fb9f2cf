//! The 8250 serial port (a 16550A, as `vm_superio` models it) in front of a stream socket.
//!
//! ```text
//!  guest --THR--> output buffer (bounded) --> socket        full: bytes are dropped and counted
//!  guest <--RBR-- FIFO, 64 bytes <----------- socket        full: the socket is left unread
//! ```
//!
//! A UART cannot hold its guest back, so that output which the host does not take is dropped rather than making the
//! guest wait. Output that was accepted stays with the machine that wrote it: it is the host's, not a register, and
//! a clone does not repeat it.
//!
//! Deliberately absent: baud rate as time, modem lines, the FIFO control register.

mod registers;
mod state;
#[cfg(test)]
mod tests;
mod worker;

pub(crate) use state::{KIND, VERSION};

use crate::backend::Backend;
use crate::{Counter, EventSource, Interest, Part, PortPart};
use ramet_state::PartState;
use registers::Uart;

const TOKEN_CONSOLE: u32 = 0;

/// A serial port.
pub(crate) struct Serial {
    id: String,
    uart: Uart,
    /// Whether the socket may have bytes for us.
    input_ready: bool,
    quiesced: bool,
}

impl Serial {
    fn new(id: String, uart: Uart) -> Self {
        Self { id, uart, input_ready: false, quiesced: true }
    }

    fn backend(&self) -> &Backend {
        self.uart.writer().backend()
    }
}

impl Part for Serial {
    fn id(&self) -> &str {
        &self.id
    }

    fn quiesce(&mut self) {
        if !self.quiesced {
            self.uart.writer_mut().flush_to_host();
            self.quiesced = true;
        }
        self.uart.interrupt_evt().set_armed(false);
    }

    fn save(&self) -> PartState {
        state::save(&self.id, &self.uart.state())
    }

    fn resume(&mut self) {
        self.quiesced = false;
        self.input_ready = true;
        self.uart.interrupt_evt().set_armed(true);
        if registers::is_interrupt_pending(&self.uart.state()) {
            self.uart.interrupt_evt().raise();
        }
        self.uart.writer_mut().flush_to_host();
        self.fill_fifo();
    }

    fn event_sources(&self) -> Vec<EventSource<'_>> {
        let interest = Interest::ReadableAndWritable;
        vec![EventSource { fd: self.backend().as_fd(), token: TOKEN_CONSOLE, interest }]
    }

    fn on_event(&mut self, token: u32) {
        if self.quiesced || token != TOKEN_CONSOLE {
            return;
        }
        self.input_ready = true;
        self.uart.writer_mut().flush_to_host();
        self.fill_fifo();
    }

    fn counters(&self) -> Vec<Counter> {
        vec![Counter { name: "output_dropped_bytes", value: self.uart.writer().dropped_bytes() }]
    }
}

impl PortPart for Serial {
    fn port_read(&mut self, offset: u16, data: &mut [u8]) {
        data.fill(0xFF);
        let ([register], Some(offset)) = (data, registers::offset(offset)) else { return };
        *register = self.uart.read(offset);
        self.fill_fifo();
    }

    fn port_write(&mut self, offset: u16, data: &[u8]) {
        let ([value], Some(offset)) = (data, registers::offset(offset)) else { return };
        // The output takes every byte and the line cannot fail.
        if let Err(error) = self.uart.write(offset, *value) {
            tracing::error!(%error, "Serial port refused a byte");
        }
        self.fill_fifo();
    }
}
