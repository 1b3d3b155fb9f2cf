//! The header of a packet: 8 bytes, little endian.
//!
//! | offset | bytes | meaning |
//! |---|---|---|
//! | 0 | 1 | kind: 1 inline, 2 payload in the first descriptor |
//! | 1 | 1 | zero |
//! | 2 | 2 | number of descriptors, with the payload |
//! | 4 | 4 | length of the message in bytes |
//!
//! The header makes an empty message differ from the end of the stream.

pub(super) const HEADER_BYTES: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Inline = 1,
    Payload = 2,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: Kind,
    /// At most 251, checked by the sender.
    pub(super) descriptors: usize,
    /// At most `MESSAGE_BYTES_MAX`, checked by the sender.
    pub(super) bytes: usize,
}

impl Header {
    pub(super) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        header[0] = self.kind as u8;
        header[2..4].copy_from_slice(&(self.descriptors as u16).to_le_bytes());
        header[4..8].copy_from_slice(&(self.bytes as u32).to_le_bytes());
        header
    }

    pub(super) fn decode(header: &[u8; HEADER_BYTES]) -> Result<Self, &'static str> {
        let [kind, zero, d0, d1, b0, b1, b2, b3] = *header;
        let kind = match kind {
            1 => Kind::Inline,
            2 => Kind::Payload,
            _ => return Err("its kind is unknown"),
        };
        if zero != 0 {
            return Err("a reserved byte is not zero");
        }
        Ok(Self {
            kind,
            descriptors: usize::from(u16::from_le_bytes([d0, d1])),
            bytes: u32::from_le_bytes([b0, b1, b2, b3]) as usize,
        })
    }
}
