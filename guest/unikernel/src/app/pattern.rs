//! A pattern in heap pages, by which a test knows whose writes are where.

use core::sync::atomic::Ordering;

use crate::runtime::memory::Heap;

/// The next of a sequence of well-mixed words (SplitMix64).
pub fn next_word(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut word = *state;
    word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ (word >> 31)
}

/// Pages `first`, `first + stride`, ... of the heap, all of which exist.
#[derive(Clone, Copy)]
pub struct Pages {
    first: u64,
    count: u64,
    stride: u64,
}

impl Pages {
    /// `None` if a page would be beyond those that requests may address, or twice the same.
    pub fn checked(heap: Heap, first: u64, count: u64, stride: u64) -> Option<Self> {
        if count > 0 {
            let last = (count - 1).checked_mul(stride)?.checked_add(first)?;
            if last >= heap.pages() || (stride == 0 && count > 1) {
                return None;
            }
        }
        Some(Self { first, count, stride })
    }

    fn numbers(self) -> impl Iterator<Item = u64> {
        (0..self.count).map(move |index| self.first + index * self.stride)
    }

    /// Writes the pattern.
    pub fn write(self, heap: Heap, seed: u64) {
        for page in self.numbers() {
            if let Some(word) = heap.word(page) {
                word.store(expected(seed, page), Ordering::Relaxed);
            }
        }
    }

    /// How many pages do not hold the pattern.
    pub fn count_wrong(self, heap: Heap, seed: u64) -> u64 {
        let right =
            |page: &u64| heap.word(*page).is_some_and(|word| word.load(Ordering::Relaxed) == expected(seed, *page));
        self.numbers().filter(|page| !right(page)).count() as u64
    }
}

/// What page `page` holds after a write with `seed`.
pub fn expected(seed: u64, page: u64) -> u64 {
    let mut state = seed ^ page.wrapping_mul(0xD6E8_FEB8_6659_FD93);
    next_word(&mut state)
}
