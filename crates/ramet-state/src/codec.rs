//! The encoding of machine states.
//!
//! A 32-byte header that can be read and judged without the body, then the body as CBOR (RFC 8949), which names its
//! fields and so describes itself. All integers of the header are little endian.
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 8 | magic "RAMETST\0" |
//! | 8 | 2 | format version |
//! | 10 | 2 | reserved, zero |
//! | 12 | 4 | CRC-32 of the body |
//! | 16 | 8 | length of the body in bytes |
//! | 24 | 4 | reserved, zero |
//! | 28 | 4 | CRC-32 of the 28 bytes before |
//!
//! Checksums find damage, not malice: whoever decodes validates what comes out as untrusted.

use serde::{Serialize, de::DeserializeOwned};

/// Length of the header.
pub const HEADER_BYTES: usize = 32;
/// Longest body that is accepted.
pub const MAX_BODY_BYTES: u64 = 64 << 20;

const MAGIC: [u8; 8] = *b"RAMETST\0";
/// Newest format version, and the only one that this version of the code reads.
const FORMAT_VERSION: u16 = 1;
/// Deepest nesting of CBOR that is accepted; a machine state needs 8.
const MAX_DEPTH: usize = 32;

/// What a header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Format version of the body.
    pub format_version: u16,
    /// Length of the body in bytes.
    pub body_bytes: u64,
    /// CRC-32 of the body.
    pub body_crc: u32,
}

/// Why a state could not be encoded.
#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    /// The body is too long.
    #[error("State of {bytes} bytes exceeds the limit of {MAX_BODY_BYTES}")]
    TooLarge {
        /// Its length.
        bytes: u64,
    },
    /// The serialiser refused.
    #[error("State cannot be serialised: {reason}")]
    Serialise {
        /// In its words.
        reason: String,
    },
}

/// Why bytes are not a state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Too short, or cut off.
    #[error("State is cut off: {found} bytes of {needed}")]
    Truncated {
        /// Bytes that are needed.
        needed: u64,
        /// Bytes that are there.
        found: u64,
    },
    /// Something follows the body.
    #[error("State has {excess} bytes after its end")]
    Excess {
        /// How many.
        excess: u64,
    },
    /// Not a state at all.
    #[error("Not a machine state: it begins with {found:02x?}")]
    Magic {
        /// The first bytes.
        found: [u8; 8],
    },
    /// The header is damaged.
    #[error("Header is damaged: checksum {found:#010x}, expected {expected:#010x}")]
    HeaderChecksum {
        /// Checksum of what is there.
        found: u32,
        /// Checksum that it states.
        expected: u32,
    },
    /// Another version of the format.
    #[error("State has format version {found}; this version of Ramet reads {FORMAT_VERSION}")]
    Version {
        /// Its version.
        found: u16,
    },
    /// The body is too long.
    #[error("State of {bytes} bytes exceeds the limit of {MAX_BODY_BYTES}")]
    TooLarge {
        /// Its length.
        bytes: u64,
    },
    /// The body is damaged.
    #[error("Body is damaged: checksum {found:#010x}, expected {expected:#010x}")]
    BodyChecksum {
        /// Checksum of what is there.
        found: u32,
        /// Checksum that the header states.
        expected: u32,
    },
    /// The body is whole but does not hold what it should.
    #[error("Body is not a state of this kind: {reason}")]
    Body {
        /// In the decoder's words.
        reason: String,
    },
}

/// Encodes a value with its header.
///
/// # Errors
/// [`EncodeError`] if it is longer than [`MAX_BODY_BYTES`] or cannot be serialised.
pub fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, EncodeError> {
    let mut bytes = Vec::with_capacity(16 << 10);
    bytes.resize(HEADER_BYTES, 0);
    ciborium::into_writer(value, &mut bytes).map_err(|error| EncodeError::Serialise { reason: error.to_string() })?;
    let body_bytes = (bytes.len() - HEADER_BYTES) as u64;
    if body_bytes > MAX_BODY_BYTES {
        return Err(EncodeError::TooLarge { bytes: body_bytes });
    }
    let body_crc = crc32fast::hash(&bytes[HEADER_BYTES..]);
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..10].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
    bytes[12..16].copy_from_slice(&body_crc.to_le_bytes());
    bytes[16..24].copy_from_slice(&body_bytes.to_le_bytes());
    let header_crc = crc32fast::hash(&bytes[..28]);
    bytes[28..32].copy_from_slice(&header_crc.to_le_bytes());
    Ok(bytes)
}

fn field<const N: usize>(bytes: &[u8; HEADER_BYTES], at: usize) -> [u8; N] {
    let mut field = [0; N];
    field.copy_from_slice(&bytes[at..at + N]);
    field
}

/// Reads the header alone.
///
/// # Errors
/// [`DecodeError`] if it is cut off, foreign, damaged, of another version or announces too long a body.
pub fn read_header(bytes: &[u8]) -> Result<Header, DecodeError> {
    let Some(header) = bytes.first_chunk::<HEADER_BYTES>() else {
        return Err(DecodeError::Truncated { needed: HEADER_BYTES as u64, found: bytes.len() as u64 });
    };
    let magic = field::<8>(header, 0);
    if magic != MAGIC {
        return Err(DecodeError::Magic { found: magic });
    }
    let (found, expected) = (crc32fast::hash(&header[..28]), u32::from_le_bytes(field(header, 28)));
    if found != expected {
        return Err(DecodeError::HeaderChecksum { found, expected });
    }
    let format_version = u16::from_le_bytes(field(header, 8));
    if format_version != FORMAT_VERSION {
        return Err(DecodeError::Version { found: format_version });
    }
    let body_bytes = u64::from_le_bytes(field(header, 16));
    if body_bytes > MAX_BODY_BYTES {
        return Err(DecodeError::TooLarge { bytes: body_bytes });
    }
    Ok(Header { format_version, body_bytes, body_crc: u32::from_le_bytes(field(header, 12)) })
}

/// Decodes a value with its header; the bytes must hold exactly that.
///
/// # Errors
/// [`DecodeError`] says what is wrong with them.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, DecodeError> {
    let header = read_header(bytes)?;
    let body = &bytes[HEADER_BYTES..];
    let found = body.len() as u64;
    if found < header.body_bytes {
        return Err(DecodeError::Truncated { needed: header.body_bytes, found });
    }
    if found > header.body_bytes {
        return Err(DecodeError::Excess { excess: found - header.body_bytes });
    }
    let crc = crc32fast::hash(body);
    if crc != header.body_crc {
        return Err(DecodeError::BodyChecksum { found: crc, expected: header.body_crc });
    }
    let mut rest = body;
    let value = ciborium::de::from_reader_with_recursion_limit(&mut rest, MAX_DEPTH)
        .map_err(|error| DecodeError::Body { reason: error.to_string() })?;
    if !rest.is_empty() {
        return Err(DecodeError::Excess { excess: rest.len() as u64 });
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::tests::any_machine;
    use crate::{MachineState, decode, encode};
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn round_trip(state in any_machine()) {
            let bytes = encode(&state).unwrap();
            prop_assert_eq!(read_header(&bytes).unwrap().body_bytes, (bytes.len() - HEADER_BYTES) as u64);
            prop_assert_eq!(decode::<MachineState>(&bytes).unwrap(), state);
        }

        #[test]
        fn any_truncation_is_an_error(state in any_machine(), cut in any::<prop::sample::Index>()) {
            let bytes = encode(&state).unwrap();
            let cut = cut.index(bytes.len());
            let truncated = matches!(decode::<MachineState>(&bytes[..cut]), Err(DecodeError::Truncated { .. }));
            prop_assert!(truncated);
        }

        #[test]
        fn any_bit_flip_is_an_error(state in any_machine(), at in any::<prop::sample::Index>(), bit in 0u32..8) {
            let mut bytes = encode(&state).unwrap();
            let at = at.index(bytes.len());
            bytes[at] ^= 1u8 << bit;
            prop_assert!(decode::<MachineState>(&bytes).is_err());
        }

        #[test]
        fn random_bodies_with_valid_checksums_never_panic(body in prop::collection::vec(any::<u8>(), 0..512)) {
            let mut bytes = encode(&0u8).unwrap();
            bytes.truncate(HEADER_BYTES);
            bytes[12..16].copy_from_slice(&crc32fast::hash(&body).to_le_bytes());
            bytes[16..24].copy_from_slice(&(body.len() as u64).to_le_bytes());
            let crc = crc32fast::hash(&bytes[..28]);
            bytes[28..32].copy_from_slice(&crc.to_le_bytes());
            bytes.extend_from_slice(&body);
            prop_assert!(decode::<MachineState>(&bytes).is_err());
        }
    }

    #[test]
    fn every_bit_of_the_header_is_guarded() {
        let bytes = encode(&7u32).unwrap();
        for bit in 0..HEADER_BYTES * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(read_header(&damaged).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn excess_is_an_error() {
        let mut bytes = encode(&7u32).unwrap();
        bytes.push(0);
        assert_eq!(decode::<u32>(&bytes), Err(DecodeError::Excess { excess: 1 }));
    }

    #[test]
    fn another_version_is_named() {
        let mut bytes = encode(&7u32).unwrap();
        bytes[8] = 9;
        let crc = crc32fast::hash(&bytes[..28]);
        bytes[28..32].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(decode::<u32>(&bytes), Err(DecodeError::Version { found: 9 }));
    }

    #[test]
    fn an_announced_body_beyond_the_limit_is_refused_by_its_header() {
        let mut bytes = encode(&7u32).unwrap();
        bytes[16..24].copy_from_slice(&(MAX_BODY_BYTES + 1).to_le_bytes());
        let crc = crc32fast::hash(&bytes[..28]);
        bytes[28..32].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(read_header(&bytes), Err(DecodeError::TooLarge { bytes: MAX_BODY_BYTES + 1 }));
    }
}
