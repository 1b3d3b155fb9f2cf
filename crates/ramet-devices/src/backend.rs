//! The host's end of a console: a connected, non-blocking stream socket.
//!
//! ```text
//!   open --end of stream--> no more input      open --peer gone--> output is taken and dropped
//! ```
//!
//! Nothing is buffered here, so that there is nothing to lose at a save.

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// What became of bytes that were offered to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// The first of them (at least one) were taken.
    Taken(usize),
    /// None, until the socket is writable again.
    Full,
    /// The other end is gone for good.
    Gone,
}

/// What came from the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// This many bytes (at least one).
    Bytes(usize),
    /// None, until the socket is readable again.
    Empty,
    /// There will be no more.
    Ended,
}

/// A console's socket.
#[derive(Debug)]
pub(crate) struct Backend {
    socket: Arc<OwnedFd>,
}

impl Backend {
    pub(crate) fn new(socket: Arc<OwnedFd>) -> Self {
        Self { socket }
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Offers `bytes` (not empty) to the host. Never blocks, never signals.
    pub(crate) fn send(&self, bytes: &[u8]) -> Sent {
        loop {
            return match rustix::net::send(&self.socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(0) => Sent::Full,
                Ok(count) => Sent::Taken(count),
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => Sent::Full,
                Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => Sent::Gone,
                Err(error) => {
                    tracing::warn!(%error, "Console's socket cannot be written; its output is dropped");
                    Sent::Gone
                }
            };
        }
    }

    /// Takes bytes from the host into `buffer` (not empty). Never blocks.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> Received {
        loop {
            return match rustix::net::recv(&self.socket, &mut *buffer, RecvFlags::DONTWAIT) {
                Ok((0, _)) => Received::Ended,
                Ok((count, _)) => Received::Bytes(count),
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => Received::Empty,
                Err(Errno::CONNRESET | Errno::NOTCONN) => Received::Ended,
                Err(error) => {
                    tracing::warn!(%error, "Console's socket cannot be read; there is no more input");
                    Received::Ended
                }
            };
        }
    }
}
