//! Messages with descriptors between two processes: a Unix socket of type SOCK_SEQPACKET.
//!
//! ```text
//! packet = header (8 bytes) + body          + descriptors              up to INLINE_BYTES_MAX
//!          header           + (no body)     + payload memfd + descriptors   above it
//! ```
//!
//! The peer is not trusted: sizes and counts are bounded by the receiver's [`Limits`], a payload memfd must be sealed,
//! and whatever is wrong with a packet, the descriptors that came with it are closed and the next packet can be read.
//!
//! Deliberately absent: what the bytes mean, and any queue: a packet that does not fit is refused by the kernel.

mod frame;
#[cfg(test)]
mod tests;

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::cmsg_space;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair, sockopt,
};

use crate::limits::advise;
use crate::sealed::{self, SealError, UnsealError};
use frame::{HEADER_BYTES, Header, Kind};

/// Bodies up to this size travel in the packet, larger ones in a sealed memfd.
pub const INLINE_BYTES_MAX: usize = 64 * 1024;
/// The largest message that can be sent, in bytes; receivers set lower limits.
pub const MESSAGE_BYTES_MAX: usize = 256 * 1024 * 1024;
/// The most descriptors in one message. The kernel allows 253 (SCM_MAX_FD); one is kept for the payload memfd.
pub const DESCRIPTORS_MAX: usize = 250;
/// SCM_MAX_FD: with room for this many the kernel never cuts descriptors off for want of space.
const KERNEL_DESCRIPTORS_MAX: usize = 253;

/// What a receiver accepts in one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The most bytes.
    pub bytes: usize,
    /// The most descriptors, at most [`DESCRIPTORS_MAX`].
    pub descriptors: usize,
}

impl Default for Limits {
    /// 1 MiB and [`DESCRIPTORS_MAX`].
    fn default() -> Self {
        Self { bytes: 1024 * 1024, descriptors: DESCRIPTORS_MAX }
    }
}

/// A message received.
#[derive(Debug)]
pub struct Message {
    /// Its bytes; may be empty.
    pub bytes: Vec<u8>,
    /// Its descriptors in the order sent, close-on-exec.
    pub descriptors: Vec<OwnedFd>,
}

/// What [`SeqPacket::recv`] found.
#[derive(Debug)]
pub enum Received {
    /// A message.
    Message(Message),
    /// The peer has closed its end (or died), and everything that it sent before has been received.
    EndOfStream,
}

/// Why a message was not sent. Nothing of it was.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// More bytes than any receiver accepts.
    #[error("A message of {0} bytes is too long: at most {MESSAGE_BYTES_MAX} can be sent")]
    TooLong(usize),
    /// More descriptors than one message carries.
    #[error("A message with {0} descriptors is too long: at most {DESCRIPTORS_MAX} can be sent")]
    TooManyDescriptors(usize),
    /// The peer has closed its end or died.
    #[error("The peer of the socket is gone")]
    PeerGone(#[source] Errno),
    /// The socket's buffer is full, and it does not wait, or its time ran out.
    #[error("The socket's buffer stayed full: its peer does not read")]
    NotReady,
    /// The payload of a large message could not be made.
    #[error("The payload of a message could not be prepared")]
    Payload(#[from] SealError),
    /// A limit was reached.
    #[error("The message was not sent: {advice}")]
    LimitReached {
        /// What to do about it.
        advice: &'static str,
        /// The error of sendmsg.
        source: Errno,
    },
    /// Any other error of sendmsg.
    #[error("Sending a message of {bytes} bytes failed")]
    Send {
        /// Its size.
        bytes: usize,
        /// The error of sendmsg.
        source: Errno,
    },
}

/// Why no message was received. Descriptors that came with a bad packet are closed; the next packet can be read.
#[derive(Debug, thiserror::Error)]
pub enum RecvError {
    /// There is no message, and the socket does not wait, or its time ran out.
    #[error("No message came")]
    NotReady,
    /// The message has more bytes than the receiver accepts (MSG_TRUNC).
    #[error("The message is longer than the {limit} bytes that are accepted")]
    TooLong {
        /// The receiver's limit.
        limit: usize,
    },
    /// The message has more descriptors than the receiver accepts.
    #[error("The message carries {found} descriptors where at most {limit} are accepted")]
    TooManyDescriptors {
        /// How many came.
        found: usize,
        /// The receiver's limit.
        limit: usize,
    },
    /// The kernel could not deliver all descriptors (MSG_CTRUNC).
    #[error("Descriptors of the message were lost: this process may open no more of them; raise ulimit -n")]
    DescriptorsLost {
        /// The message itself; empty for one whose bytes came by a descriptor.
        bytes: Vec<u8>,
    },
    /// Not a packet of this protocol.
    #[error("The packet is malformed: {0}")]
    Malformed(&'static str),
    /// The payload memfd of a large message is not what it should be.
    #[error("The payload of a large message was refused")]
    Payload(#[from] UnsealError),
    /// Any other error of recvmsg.
    #[error("Receiving a message failed")]
    Recv(#[source] Errno),
}

/// Why a descriptor cannot be used as a [`SeqPacket`], or none could be made.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// It is another kind of file or socket.
    #[error("The descriptor is not a Unix socket of type SOCK_SEQPACKET")]
    NotSeqPacket,
    /// Making or configuring a socket failed.
    #[error("{call} failed")]
    Call {
        /// The system call.
        call: &'static str,
        /// Its error.
        source: Errno,
    },
}

/// One end of a connected SOCK_SEQPACKET Unix socket.
///
/// Any number of threads may send and receive on it at once: a packet is never split.
#[derive(Debug)]
pub struct SeqPacket(OwnedFd);

impl SeqPacket {
    /// Two connected ends, both close-on-exec and blocking.
    pub fn pair() -> Result<(Self, Self), SocketError> {
        let (first, second) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map_err(|source| SocketError::Call { call: "socketpair", source })?;
        Ok((Self(first), Self(second)))
    }

    /// Takes over a descriptor that another process passed, after checking what it is.
    pub fn from_fd(fd: OwnedFd) -> Result<Self, SocketError> {
        let is_unix = sockopt::socket_domain(&fd) == Ok(AddressFamily::UNIX);
        if is_unix && sockopt::socket_type(&fd) == Ok(SocketType::SEQPACKET) {
            Ok(Self(fd))
        } else {
            Err(SocketError::NotSeqPacket)
        }
    }

    /// The descriptor, for passing this end to another process.
    pub fn into_fd(self) -> OwnedFd {
        self.0
    }

    /// Whether sending and receiving return [`SendError::NotReady`] and [`RecvError::NotReady`] instead of waiting.
    ///
    /// This is a property of the open file description: it holds for every process that has this end.
    pub fn set_nonblocking(&self, nonblocking: bool) -> Result<(), SocketError> {
        rustix::io::ioctl_fionbio(&self.0, nonblocking)
            .map_err(|source| SocketError::Call { call: "ioctl(FIONBIO)", source })
    }

    /// The longest wait of one send and one receive; `None` waits without end. Zero is not allowed (EINVAL).
    pub fn set_timeouts(&self, send: Option<Duration>, recv: Option<Duration>) -> Result<(), SocketError> {
        let failed = |source| SocketError::Call { call: "setsockopt(SO_SNDTIMEO, SO_RCVTIMEO)", source };
        sockopt::set_socket_timeout(&self.0, sockopt::Timeout::Send, send).map_err(failed)?;
        sockopt::set_socket_timeout(&self.0, sockopt::Timeout::Recv, recv).map_err(failed)
    }

    /// Sends a message. Above [`INLINE_BYTES_MAX`] the bytes travel in a sealed memfd, which the receiver does not see.
    pub fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), SendError> {
        if bytes.len() > MESSAGE_BYTES_MAX {
            return Err(SendError::TooLong(bytes.len()));
        }
        if descriptors.len() > DESCRIPTORS_MAX {
            return Err(SendError::TooManyDescriptors(descriptors.len()));
        }
        if bytes.len() <= INLINE_BYTES_MAX {
            let header = Header { kind: Kind::Inline, descriptors: descriptors.len(), bytes: bytes.len() };
            return self.send_packet(&header, bytes, descriptors);
        }
        let payload = sealed::sealed_memfd("ramet-message", bytes)?;
        let header = Header { kind: Kind::Payload, descriptors: descriptors.len() + 1, bytes: bytes.len() };
        let all: Vec<_> = std::iter::once(payload.as_fd()).chain(descriptors.iter().copied()).collect();
        self.send_packet(&header, &[], &all)
    }

    fn send_packet(&self, header: &Header, body: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), SendError> {
        let head = header.encode();
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(KERNEL_DESCRIPTORS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(SendError::TooManyDescriptors(descriptors.len()));
        }
        let parts = [IoSlice::new(&head), IoSlice::new(body)];
        match retry_on_intr(|| sendmsg(&self.0, &parts, &mut control, SendFlags::NOSIGNAL)) {
            Ok(sent) if sent == HEADER_BYTES + body.len() => Ok(()),
            // A packet is sent whole or not at all (unix(7)).
            Ok(_) => Err(SendError::Send { bytes: header.bytes, source: Errno::MSGSIZE }),
            Err(Errno::AGAIN) => Err(SendError::NotReady),
            Err(source @ (Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN)) => Err(SendError::PeerGone(source)),
            Err(source) => Err(match advise(source) {
                Some(advice) => SendError::LimitReached { advice, source },
                None => SendError::Send { bytes: header.bytes, source },
            }),
        }
    }

    /// Receives the next message within `limits`.
    pub fn recv(&self, limits: Limits) -> Result<Received, RecvError> {
        let mut head = [0; HEADER_BYTES];
        let mut body = vec![0; self.next_body_bytes()?.min(limits.bytes).min(INLINE_BYTES_MAX)];
        let (received, flags, mut descriptors) = self.recv_packet(&mut head, &mut body)?;
        if received == 0 && descriptors.is_empty() {
            return Ok(Received::EndOfStream);
        }
        if flags.contains(ReturnFlags::CTRUNC) {
            body.truncate(received.saturating_sub(HEADER_BYTES));
            return Err(RecvError::DescriptorsLost { bytes: body });
        }
        if flags.contains(ReturnFlags::TRUNC) {
            return Err(RecvError::TooLong { limit: limits.bytes });
        }
        let Some(body_bytes) = received.checked_sub(HEADER_BYTES) else {
            return Err(RecvError::Malformed("it is shorter than a header"));
        };
        let header = Header::decode(&head).map_err(RecvError::Malformed)?;
        if header.descriptors != descriptors.len() {
            return Err(RecvError::Malformed("it does not carry the announced number of descriptors"));
        }
        let bytes = match header.kind {
            Kind::Inline if header.bytes == body_bytes => {
                body.truncate(body_bytes);
                body
            }
            Kind::Inline => return Err(RecvError::Malformed("its body does not have the announced length")),
            Kind::Payload if body_bytes != 0 || descriptors.is_empty() => {
                return Err(RecvError::Malformed("a payload packet has one memfd and no body"));
            }
            Kind::Payload if header.bytes > limits.bytes => return Err(RecvError::TooLong { limit: limits.bytes }),
            Kind::Payload => sealed::read_sealed(descriptors.remove(0), header.bytes)?,
        };
        if descriptors.len() > limits.descriptors {
            return Err(RecvError::TooManyDescriptors { found: descriptors.len(), limit: limits.descriptors });
        }
        Ok(Received::Message(Message { bytes, descriptors }))
    }

    /// How long the next packet's body is: a buffer for the longest would cost a newborn process more page faults than
    /// this costs it time.
    fn next_body_bytes(&self) -> Result<usize, RecvError> {
        loop {
            match rustix::net::recv(&self.0, &mut [0; 0], RecvFlags::PEEK | RecvFlags::TRUNC) {
                Ok((_, bytes)) => return Ok(bytes.saturating_sub(HEADER_BYTES)),
                Err(Errno::INTR | Errno::CONNRESET) => continue,
                Err(Errno::AGAIN) => return Err(RecvError::NotReady),
                Err(errno) => return Err(RecvError::Recv(errno)),
            }
        }
    }

    fn recv_packet(&self, head: &mut [u8], body: &mut [u8]) -> Result<(usize, ReturnFlags, Vec<OwnedFd>), RecvError> {
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(KERNEL_DESCRIPTORS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let result = loop {
            let mut parts = [IoSliceMut::new(head), IoSliceMut::new(body)];
            match recvmsg(&self.0, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Ok(result) => break result,
                // ECONNRESET says once that the peer closed without reading everything; what it sent comes after.
                Err(Errno::INTR | Errno::CONNRESET) => continue,
                Err(Errno::AGAIN) => return Err(RecvError::NotReady),
                Err(errno) => return Err(RecvError::Recv(errno)),
            }
        };
        let mut descriptors = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        Ok((result.bytes, result.flags, descriptors))
    }
}

impl AsFd for SeqPacket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
