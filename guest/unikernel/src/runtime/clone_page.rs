//! The clone page: identity, generation and the mailbox, as ramet-abi lays them out.
//!
//! The page is replaced under the running guest when the machine is forked: any two reads may come from two pages.
//! So no value read from it is kept across anything that matters; [`ClonePage::generation_counter`] tells afterwards
//! whether the page was still the same.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

use ramet_abi::clone_page::*;
use ramet_abi::layout::{ANSWER_DOORBELL, CLONE_PAGE_BASE};

use super::{cpu, mmio};

/// The page. There is one, at a fixed address; this value is only a handle.
#[derive(Clone, Copy)]
pub struct ClonePage(());

/// Where the first-instruction word is, for assembly code.
pub const FIRST_INSTRUCTION_TSC_ADDRESS: u64 = CLONE_PAGE_BASE + FIRST_INSTRUCTION_TSC_AT as u64;

fn word32(at: usize) -> &'static AtomicU32 {
    assert!(at.is_multiple_of(4) && at <= 0x1000 - 4, "offset {at:#x} is not in the clone page");
    // SAFETY: the page is identity-mapped memory that nothing else in this program refers to; the offset is in it and
    // aligned. The host writes it concurrently, which atomics allow.
    unsafe { AtomicU32::from_ptr((CLONE_PAGE_BASE as usize + at) as *mut u32) }
}

fn word64(at: usize) -> &'static AtomicU64 {
    assert!(at.is_multiple_of(8) && at <= 0x1000 - 8, "offset {at:#x} is not in the clone page");
    // SAFETY: as for 32 bits.
    unsafe { AtomicU64::from_ptr((CLONE_PAGE_BASE as usize + at) as *mut u64) }
}

fn byte(at: usize) -> &'static AtomicU8 {
    assert!(at < 0x1000, "offset {at:#x} is not in the clone page");
    // SAFETY: as for 32 bits.
    unsafe { AtomicU8::from_ptr((CLONE_PAGE_BASE as usize + at) as *mut u8) }
}

impl ClonePage {
    /// Finds the page; `None` if the monitor did not put one there, or one of another version.
    pub fn find() -> Option<Self> {
        let ours = word64(MAGIC_AT).load(Ordering::Relaxed) == MAGIC
            && word32(VERSION_AT).load(Ordering::Relaxed) == ABI_VERSION;
        ours.then_some(Self(()))
    }

    /// Notes the time of the first instruction, if this page has none yet.
    #[inline(always)]
    pub fn note_first_instruction(self) {
        let first = word64(FIRST_INSTRUCTION_TSC_AT);
        if first.load(Ordering::Relaxed) == 0 {
            first.store(cpu::time_stamp(), Ordering::Relaxed);
        }
    }

    /// The counter that changes whenever the page does.
    #[inline(always)]
    pub fn generation_counter(self) -> u32 {
        word32(GENERATION_COUNTER_AT).load(Ordering::Acquire)
    }

    /// The 128-bit generation.
    pub fn generation(self) -> [u64; 2] {
        [word64(GENERATION_AT).load(Ordering::Relaxed), word64(GENERATION_AT + 8).load(Ordering::Relaxed)]
    }

    /// This machine's number in its family.
    pub fn number(self) -> u64 {
        word64(NUMBER_AT).load(Ordering::Relaxed)
    }

    /// The number of the machine that this one was forked from.
    pub fn parent(self) -> u64 {
        word64(PARENT_AT).load(Ordering::Relaxed)
    }

    /// Nanoseconds to add to kvm-clock for the wall clock.
    pub fn wall_offset_ns(self) -> i64 {
        word64(WALL_OFFSET_NS_AT).load(Ordering::Relaxed).cast_signed()
    }

    /// Bytes of family memory.
    pub fn family_bytes(self) -> u64 {
        word64(FAMILY_BYTES_AT).load(Ordering::Relaxed)
    }

    /// Takes the entropy out of the page, so that it is used once.
    pub fn take_entropy(self) -> [u64; ENTROPY_BYTES / 8] {
        core::array::from_fn(|index| word64(ENTROPY_AT + index * 8).swap(0, Ordering::Relaxed))
    }

    /// The sequence number of the request that waits for an answer, if one does.
    #[inline(always)]
    pub fn pending(self) -> Option<u32> {
        let sequence = word32(REQUEST_SEQUENCE_AT).load(Ordering::Acquire);
        (sequence != word32(ANSWER_SEQUENCE_AT).load(Ordering::Relaxed)).then_some(sequence)
    }

    /// Length of the request, no more than the page holds.
    pub fn request_bytes(self) -> usize {
        (word32(REQUEST_LENGTH_AT).load(Ordering::Relaxed) as usize).min(REQUEST_MAX_BYTES)
    }

    /// One byte of the request.
    pub fn request_byte(self, at: usize) -> u8 {
        byte(REQUEST_AT + at).load(Ordering::Relaxed)
    }

    /// Writes one byte of the answer.
    pub fn put_answer_byte(self, at: usize, value: u8) {
        byte(ANSWER_AT + at).store(value, Ordering::Relaxed);
    }

    /// Publishes the answer to request `sequence` and rings the doorbell, unless the page has been replaced since
    /// its generation was `generation`.
    ///
    /// A fork between the last look at the generation and the store would put the parent's sequence number into the
    /// child's page; the second look takes it back before the doorbell rings.
    pub fn publish_answer(self, generation: u32, sequence: u32, bytes: usize) {
        if self.generation_counter() != generation {
            return;
        }
        word32(ANSWER_LENGTH_AT).store(bytes as u32, Ordering::Relaxed);
        word32(ANSWER_SEQUENCE_AT).store(sequence, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.generation_counter() != generation {
            word32(ANSWER_SEQUENCE_AT).store(0, Ordering::Release);
            return;
        }
        mmio::write(ANSWER_DOORBELL, 1);
    }
}
