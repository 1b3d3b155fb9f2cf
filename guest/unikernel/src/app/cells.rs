//! Private words: memory of this machine that requests read and write.

use core::sync::atomic::{AtomicU64, Ordering};

use ramet_abi::request::CELLS;

static WORDS: [AtomicU64; CELLS as usize] = [const { AtomicU64::new(0) }; CELLS as usize];

fn word(index: u64) -> Option<&'static AtomicU64> {
    WORDS.get(usize::try_from(index).ok()?)
}

/// Reads a word; `None` if there is no such word.
pub fn peek(index: u64) -> Option<u64> {
    Some(word(index)?.load(Ordering::Relaxed))
}

/// Writes a word; `None` if there is no such word.
pub fn poke(index: u64, value: u64) -> Option<()> {
    word(index)?.store(value, Ordering::Relaxed);
    Some(())
}
