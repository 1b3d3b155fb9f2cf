//! Memory: where RAM is, words of the heap, and the functions that the compiler expects to exist.
//!
//! The heap is what is left of RAM above [`HEAP_START`], seen as numbered pages, so that its users need not know of
//! the hole below 4 GiB. Its last pages are kept for the other vCPUs' work.
#![allow(unsafe_code)]

use core::arch::asm;
use core::sync::atomic::AtomicU64;

use ramet_abi::layout::{HOLE_END, HOLE_START, PAGE_BYTES, split_ram};

/// First address of the heap; link.ld keeps everything else below it.
const HEAP_START: u64 = 0x60_0000;
/// Least RAM that leaves a heap.
pub const RAM_MIN_BYTES: u64 = 8 << 20;
/// Most pages of the heap that are kept for the other vCPUs' work.
const WORK_MAX_PAGES: u64 = 4096;

/// The pages of the heap.
#[derive(Clone, Copy)]
pub struct Heap {
    below_hole: u64,
    pages: u64,
}

impl Heap {
    /// The heap of a machine with `ram_bytes` of RAM.
    pub fn new(ram_bytes: u64) -> Self {
        assert!(ram_bytes >= RAM_MIN_BYTES, "{ram_bytes} bytes of RAM are too few: give the machine 8 MiB or more");
        let (low, high) = split_ram(ram_bytes);
        let below_hole = (low - HEAP_START) / PAGE_BYTES;
        Self { below_hole, pages: below_hole + high / PAGE_BYTES }
    }

    /// Pages that requests may address, from number 0.
    pub fn pages(self) -> u64 {
        self.pages - self.work_pages()
    }

    /// Pages behind those, for the other vCPUs' work.
    pub fn work_pages(self) -> u64 {
        (self.pages / 4).min(WORK_MAX_PAGES)
    }

    /// The first word of a page; `None` beyond the heap.
    pub fn word(self, page: u64) -> Option<&'static AtomicU64> {
        let address = if page < self.below_hole {
            HEAP_START + page * PAGE_BYTES
        } else if page < self.pages {
            HOLE_END + (page - self.below_hole) * PAGE_BYTES
        } else {
            return None;
        };
        // SAFETY: the address is in RAM, above the image and the stacks, aligned to a page, and identity-mapped for
        // ever. Nothing uses the heap but through this function.
        Some(unsafe { AtomicU64::from_ptr(address as *mut u64) })
    }
}

const _: () = assert!(RAM_MIN_BYTES > HEAP_START && HEAP_START < HOLE_START);

/// The C library's function, for the compiler.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    // SAFETY: the caller's promise; the direction flag is clear in Rust code.
    unsafe { asm!("rep movsb", inout("rdi") to => _, inout("rsi") from => _, inout("rcx") count => _) };
    to
}

/// The C library's function, for the compiler.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    if (to as usize).wrapping_sub(from as usize) >= count {
        // SAFETY: the caller's promise; copying upwards does not overwrite what is still to be read.
        return unsafe { memcpy(to, from, count) };
    }
    // SAFETY: the caller's promise; the areas overlap with `to` above `from`, so it copies downwards from the last
    // byte (`count` is not 0 here), and clears the direction flag again.
    unsafe {
        asm!("std", "rep movsb", "cld", inout("rdi") to.add(count - 1) => _, inout("rsi") from.add(count - 1) => _,
            inout("rcx") count => _);
    }
    to
}

/// The C library's function, for the compiler.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, value: i32, count: usize) -> *mut u8 {
    // SAFETY: the caller's promise; the direction flag is clear in Rust code.
    unsafe { asm!("rep stosb", inout("rdi") to => _, in("al") value as u8, inout("rcx") count => _) };
    to
}

/// The C library's function, for the compiler.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(left: *const u8, right: *const u8, count: usize) -> i32 {
    for at in 0..count {
        // SAFETY: the caller's promise. Volatile, lest the loop be turned into a call of this function.
        let (a, b) = unsafe { (left.add(at).read_volatile(), right.add(at).read_volatile()) };
        if a != b {
            return i32::from(a) - i32::from(b);
        }
    }
    0
}

/// The C library's function, for the compiler.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(left: *const u8, right: *const u8, count: usize) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { memcmp(left, right, count) }
}
