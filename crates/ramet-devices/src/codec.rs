//! How a part's registers become bytes: one CBOR value of a plain struct, whose version the state's header has.
//!
//! The bytes are untrusted. Length is bounded, unknown fields and trailing bytes are refused; what the values mean
//! is for each part's constructor to check.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Most bytes of one part's registers.
pub const MAX_REGISTERS_BYTES: usize = 64 << 10;

/// How deep a value may be nested.
const MAX_NESTING: usize = 16;

/// Why registers could not be decoded.
#[derive(Debug, thiserror::Error)]
pub enum RegistersError {
    /// More than any part has.
    #[error("Registers have {bytes} bytes, more than {MAX_REGISTERS_BYTES}")]
    TooLong {
        /// How many there are.
        bytes: usize,
    },
    /// Not what this version of the part writes.
    #[error("Registers cannot be decoded")]
    Malformed(#[source] ciborium::de::Error<std::io::Error>),
    /// Bytes after the end.
    #[error("Registers are followed by {bytes} more bytes")]
    Trailing {
        /// How many.
        bytes: usize,
    },
}

/// Encodes registers.
pub(crate) fn encode(registers: &impl Serialize) -> Vec<u8> {
    let mut bytes = Vec::new();
    ciborium::into_writer(registers, &mut bytes).expect("plain structs of integers encode, and a Vec takes any bytes");
    bytes
}

/// Decodes registers.
pub(crate) fn decode<T: DeserializeOwned>(mut bytes: &[u8]) -> Result<T, RegistersError> {
    if bytes.len() > MAX_REGISTERS_BYTES {
        return Err(RegistersError::TooLong { bytes: bytes.len() });
    }
    let registers =
        ciborium::de::from_reader_with_recursion_limit(&mut bytes, MAX_NESTING).map_err(RegistersError::Malformed)?;
    if bytes.is_empty() { Ok(registers) } else { Err(RegistersError::Trailing { bytes: bytes.len() }) }
}
