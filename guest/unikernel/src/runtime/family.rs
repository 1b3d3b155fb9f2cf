//! Family memory: words that all machines of a family share.
#![allow(unsafe_code)]

use core::sync::atomic::AtomicU64;

use ramet_abi::layout::{FAMILY_BASE, FAMILY_MAX_BYTES};

use super::clone_page::ClonePage;

/// A word of family memory; `None` beyond what this family has.
pub fn word(page: ClonePage, index: u64) -> Option<&'static AtomicU64> {
    let words = page.family_bytes().min(FAMILY_MAX_BYTES) / 8;
    // SAFETY: the monitor says in the clone page that this memory is there; it is identity-mapped, aligned, and
    // nothing else in this program refers to it. Other machines write it concurrently, which atomics allow.
    (index < words).then(|| unsafe { AtomicU64::from_ptr((FAMILY_BASE + index * 8) as *mut u64) })
}
