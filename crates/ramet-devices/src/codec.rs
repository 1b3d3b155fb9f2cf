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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde::Deserialize;

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Sample {
        number: u64,
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
        list: Vec<Option<u16>>,
    }

    fn sample() -> Sample {
        Sample { number: u64::MAX, bytes: vec![7; 100], list: vec![None, Some(3)] }
    }

    #[test]
    fn what_was_encoded_decodes() {
        assert_eq!(decode::<Sample>(&encode(&sample())).unwrap(), sample());
    }

    #[test]
    fn unknown_fields_and_trailing_bytes_are_refused() {
        #[derive(Serialize)]
        struct Larger {
            number: u64,
            bytes: Vec<u8>,
            list: Vec<u8>,
            more: u8,
        }
        let larger = encode(&Larger { number: 0, bytes: Vec::new(), list: Vec::new(), more: 0 });
        assert!(matches!(decode::<Sample>(&larger), Err(RegistersError::Malformed(_))));
        let mut trailing = encode(&sample());
        trailing.push(0);
        assert!(matches!(decode::<Sample>(&trailing), Err(RegistersError::Trailing { bytes: 1 })));
        let long = vec![0; MAX_REGISTERS_BYTES + 1];
        assert!(matches!(decode::<Sample>(&long), Err(RegistersError::TooLong { .. })));
    }

    #[test]
    fn lengths_that_lie_allocate_nothing_much() {
        // A map of one field whose byte string claims 2^63 bytes.
        let mut bytes = vec![0xA1, 0x65];
        bytes.extend(b"bytes");
        bytes.extend([0x5B, 0x7F, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF]);
        assert!(decode::<Sample>(&bytes).is_err());
        // An array in an array in an array...
        assert!(decode::<Sample>(&[0x81; 1000]).is_err());
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            drop(decode::<Sample>(&bytes));
        }
    }
}
