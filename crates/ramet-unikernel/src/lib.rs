//! The embedded unikernel, and how to talk to it.
//!
//! Requests and answers are those of [`ramet_abi::request`]; here they are values instead of bytes. An answer comes
//! from a guest and is not to be trusted: every length is checked.
//!
//! Deliberately absent: how a request reaches a machine (`ramet_family::Family::request`).
#![forbid(unsafe_code)]

use ramet_abi::request::{self, identity};

/// The guest's ELF file, built from guest/unikernel.
pub static ELF: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/unikernel.elf"));

/// An answer that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    /// Too short.
    #[error("The guest's answer has {found} bytes; {needed} belong to it")]
    Short {
        /// How many there are.
        found: usize,
        /// How many there should be.
        needed: usize,
    },
    /// The guest refuses.
    #[error("The guest refuses with status {status}")]
    Refused {
        /// `ramet_abi::request::UNKNOWN_OPERATION` or `BAD_ARGUMENT`.
        status: u32,
    },
}

/// A request: an operation and its arguments.
pub fn request(operation: u32, arguments: &[u64]) -> Vec<u8> {
    let mut bytes = operation.to_le_bytes().to_vec();
    bytes.extend(arguments.iter().flat_map(|argument| argument.to_le_bytes()));
    bytes
}

/// A request with bytes instead of arguments.
pub fn request_with_bytes(operation: u32, bytes: &[u8]) -> Vec<u8> {
    [&operation.to_le_bytes(), bytes].concat()
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], AnswerError> {
    let short = AnswerError::Short { found: bytes.len(), needed: at + N };
    bytes.get(at..at + N).and_then(|part| part.try_into().ok()).ok_or(short)
}

/// What an answer holds after its status.
///
/// # Errors
/// [`AnswerError`] if the guest refuses.
pub fn payload(answer: &[u8]) -> Result<&[u8], AnswerError> {
    match u32::from_le_bytes(array(answer, 0)?) {
        request::OK => Ok(&answer[4..]),
        status => Err(AnswerError::Refused { status }),
    }
}

/// The `N` words of an answer.
///
/// # Errors
/// [`AnswerError`] if there are fewer, or the guest refuses.
pub fn words<const N: usize>(answer: &[u8]) -> Result<[u64; N], AnswerError> {
    let payload = payload(answer)?;
    let mut words = [0; N];
    for (index, word) in words.iter_mut().enumerate() {
        *word = u64::from_le_bytes(array(payload, index * 8)?);
    }
    Ok(words)
}

/// Who a guest says that it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Number in the family.
    pub number: u64,
    /// Its parent's.
    pub parent: u64,
    /// Generation.
    pub generation: [u8; 16],
    /// Bytes of its own generator.
    pub random: [u8; 32],
    /// Wall clock in ns since 1970.
    pub wall_ns: u64,
    /// Monotonic clock in ns.
    pub monotonic_ns: u64,
    /// What it has counted, through all forks.
    pub counter: u64,
    /// vCPUs that have come up.
    pub vcpus: u64,
}

impl Identity {
    /// Asks for it.
    pub fn request() -> Vec<u8> {
        request(request::IDENTITY, &[])
    }

    /// Reads the answer.
    ///
    /// # Errors
    /// [`AnswerError`].
    pub fn parse(answer: &[u8]) -> Result<Self, AnswerError> {
        let payload = payload(answer)?;
        let word = |at| array(payload, at).map(u64::from_le_bytes);
        Ok(Self {
            number: word(identity::NUMBER_AT)?,
            parent: word(identity::PARENT_AT)?,
            generation: array(payload, identity::GENERATION_AT)?,
            random: array(payload, identity::RANDOM_AT)?,
            wall_ns: word(identity::WALL_NS_AT)?,
            monotonic_ns: word(identity::MONOTONIC_NS_AT)?,
            counter: word(identity::COUNTER_AT)?,
            vcpus: word(identity::VCPUS_AT)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_packed_little_endian() {
        assert_eq!(request(3, &[1, 2]).len(), 20);
        assert_eq!(request(3, &[1])[..5], [3, 0, 0, 0, 1]);
    }

    #[test]
    fn short_and_refused_answers_are_errors() {
        assert_eq!(words::<1>(&[0, 0]), Err(AnswerError::Short { found: 2, needed: 4 }));
        assert_eq!(words::<1>(&[0, 0, 0, 0, 1]), Err(AnswerError::Short { found: 1, needed: 8 }));
        assert_eq!(words::<1>(&[2, 0, 0, 0]), Err(AnswerError::Refused { status: 2 }));
        assert!(Identity::parse(&[0; 50]).is_err());
    }

    #[test]
    fn the_guest_is_an_elf_file() {
        assert!(ELF.starts_with(b"\x7fELF"), "{} bytes", ELF.len());
    }
}
