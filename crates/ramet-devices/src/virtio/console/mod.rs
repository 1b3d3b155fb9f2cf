//! virtio-console (device 3; virtio 1.2, section 5.3): one port in front of a stream socket.
//!
//! ```text
//!   transmitq: buffer --copy, send--> socket        full: the buffer stays in the queue, half done
//!   receiveq:  buffer <-copy, recv--- socket        no buffer: the bytes stay in the socket
//! ```
//!
//! There is no buffer of bytes in between, so that nothing can be lost or doubled: what the host has not taken is
//! still in the guest's queue, and `transmitted_bytes` says how far the buffer at its head has come. That holds for
//! the machine that goes on after a save just as for one that is built from it.
//!
//! When the other end of the socket is gone, output is taken, dropped and counted: a guest must not hang because
//! nobody watches.
//!
//! Deliberately absent: multiport, resizing.

mod config;
mod state;
#[cfg(test)]
mod tests;
mod worker;

pub(crate) use state::{KIND, VERSION};

use crate::backend::Backend;
use state::ConsoleRegisters;

/// A console.
#[derive(Debug)]
pub(crate) struct Console {
    registers: ConsoleRegisters,
    backend: Backend,
    /// Whether the socket may have bytes for us.
    input_ready: bool,
    /// Whether the socket may have room.
    output_ready: bool,
    dropped_bytes: u64,
}
