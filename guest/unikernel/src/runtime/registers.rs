//! A workload that keeps its whole state in registers, to find out whether they survive what is done to a machine.
//!
//! Registers are loaded from a [`Context`], mixed for a number of rounds without being spilled, and stored back.
//! Same context in, same context out, on any CPU; a register that was lost or changed on the way, even for a moment,
//! shows.
#![allow(unsafe_code)]

use core::arch::global_asm;

use ramet_abi::request::{EXACT_AVX, EXACT_AVX512, EXACT_RING0, EXACT_SSE, EXACT_X87};

use super::clone_page::FIRST_INSTRUCTION_TSC_ADDRESS;
use super::cpu::Features;
use crate::ring0;

const ROOM_BYTES: usize = 64;
/// Times that a round mixes the registers.
const INNER_LOOPS: u32 = 64;

const KNOWN_BITS: u64 =
    ramet_abi::request::EXACT_INTEGER | EXACT_X87 | EXACT_SSE | EXACT_AVX | EXACT_AVX512 | EXACT_RING0;

// registers.s tests the mask bytewise and takes the address as 32 bits.
const _: () = assert!(KNOWN_BITS < 0x80 && FIRST_INSTRUCTION_TSC_ADDRESS < 1 << 32);

global_asm!(
    include_str!("registers.s"),
    ROOM = const ROOM_BYTES,
    INNER_LOOPS = const INNER_LOOPS,
    X87_BIT = const EXACT_X87,
    SSE_BIT = const EXACT_SSE,
    AVX_BIT = const EXACT_AVX,
    AVX512_BIT = const EXACT_AVX512,
    RING0_BIT = const EXACT_RING0,
    FIRST_INSTRUCTION = const FIRST_INSTRUCTION_TSC_ADDRESS,
    NOTHING_ADDRESS = const ring0::NOTHING_ADDRESS,
    options(att_syntax)
);

/// What the registers start with and end with. Offsets are known to registers.s.
#[repr(C, align(64))]
#[derive(Clone)]
pub struct Context {
    room: [u64; ROOM_BYTES / 8],
    left: u64,
    done: u64,
    mask: u64,
    saved_rsp: u64,
    flags: u64,
    /// MXCSR, x87 control word, x87 status word.
    control: u64,
    inner: u64,
    unused: u64,
    general: [u64; 16],
    x87: [u64; 16],
    masks: [u64; 8],
    vectors: [[u64; 8]; 32],
}

const _: () = assert!(core::mem::offset_of!(Context, general) == ROOM_BYTES + 0x40);
const _: () = assert!(core::mem::offset_of!(Context, x87) == ROOM_BYTES + 0xC0);
const _: () = assert!(core::mem::offset_of!(Context, masks) == ROOM_BYTES + 0x140);
const _: () = assert!(core::mem::offset_of!(Context, vectors) == ROOM_BYTES + 0x180);

/// A set of register classes that this CPU has.
#[derive(Clone, Copy)]
pub struct Classes(u64);

impl Classes {
    /// Checks a mask of `EXACT_*` bits against the CPU; `None` for an unknown class or one that the CPU lacks.
    pub fn checked(mask: u64, features: Features) -> Option<Self> {
        let lacking = (mask & !KNOWN_BITS != 0)
            || (mask & EXACT_AVX != 0 && !features.avx)
            || (mask & EXACT_AVX512 != 0 && !features.avx512);
        (!lacking).then_some(Self(mask))
    }
}

impl Context {
    /// Registers full of what `next` gives.
    pub fn filled(mut next: impl FnMut() -> u64) -> Self {
        let general = core::array::from_fn(|_| next());
        let mut x87 = [0; 16];
        let mut bytes = [0; 80];
        for value in bytes.chunks_exact_mut(10) {
            // Extended precision: a number in ]-1, 1[ whose 64-bit significand has its top bit set.
            let random = next();
            value[..8].copy_from_slice(&(random | 1 << 63).to_le_bytes());
            value[8..].copy_from_slice(&(0x3FFE | (random as u16 & 1) << 15).to_le_bytes());
        }
        for (word, eight) in x87.iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_le_bytes(*eight);
        }
        let masks = core::array::from_fn(|_| next());
        let vectors = core::array::from_fn(|_| core::array::from_fn(|_| next()));
        Self {
            room: [0; ROOM_BYTES / 8],
            left: 0,
            done: 0,
            mask: 0,
            saved_rsp: 0,
            flags: 0,
            control: 0,
            inner: 0,
            unused: 0,
            general,
            x87,
            masks,
            vectors,
        }
    }

    /// Mixes the registers of these classes. Of SSE, AVX and AVX-512, which share their registers, the widest runs.
    pub fn run(&mut self, classes: Classes, rounds: u64) {
        // SAFETY: registers.s defines it.
        unsafe extern "C" {
            fn registers_run(context: *mut Context);
        }
        if rounds == 0 {
            return;
        }
        self.left = rounds;
        self.mask = classes.0;
        // SAFETY: the context has the layout that the code expects; the code writes nothing else, keeps the
        // registers that a function must keep, and the CPU has the classes.
        unsafe { registers_run(self) };
    }

    /// The registers' contents, with TOP as the only part of the x87 status word that all CPUs agree on.
    pub fn words(&self) -> impl Iterator<Item = u64> {
        // MXCSR's and x87's sticky exception flags depend on no lost register but on emulators' taste.
        let control = self.control & 0x3800_FFFF_0000_FFC0;
        let lists: [&[u64]; 4] = [&self.general, &self.x87, &self.masks, self.vectors.as_flattened()];
        [self.flags, control].into_iter().chain(lists.into_iter().flatten().copied())
    }
}
