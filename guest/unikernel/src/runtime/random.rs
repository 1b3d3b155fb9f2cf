//! The random number generator: ChaCha20 with fast key erasure.
//!
//! Every extraction replaces the key, so that no earlier output can be computed from the state. The state is copied
//! by a fork like all memory, which is why every extraction looks at the clone page's generation, and takes in the
//! new page's entropy when it has changed.

use super::clone_page::ClonePage;
use super::cpu::{self, Features};

/// The generator.
pub struct Random {
    key: [u32; 8],
    generation: u32,
    /// Whether RDRAND may be used; asking the CPU takes too long before the first answer.
    hardware: bool,
}

impl Random {
    /// A generator seeded from the clone page and the time-stamp counter.
    pub fn new(page: ClonePage) -> Self {
        let mut random = Self { key: [0; 8], generation: 0, hardware: false };
        random.reseed(page);
        random
    }

    /// Makes the generator this machine's own if the machine was forked since.
    pub fn follow(&mut self, page: ClonePage) {
        while page.generation_counter() != self.generation {
            self.reseed(page);
        }
    }

    /// 32 random bytes that no other machine gets.
    pub fn bytes32(&mut self, page: ClonePage) -> [u8; 32] {
        loop {
            self.follow(page);
            let block = chacha20_block(&self.key);
            let mut bytes = [0; 32];
            for (four, word) in bytes.chunks_exact_mut(4).zip(&block[8..]) {
                four.copy_from_slice(&word.to_le_bytes());
            }
            self.key.copy_from_slice(&block[..8]);
            if page.generation_counter() == self.generation {
                return bytes;
            }
        }
    }

    /// Mixes 256 bits into the key.
    pub fn absorb(&mut self, words: &[u64; 4]) {
        for (pair, word) in self.key.chunks_exact_mut(2).zip(words) {
            pair[0] ^= *word as u32;
            pair[1] ^= (*word >> 32) as u32;
        }
        let block = chacha20_block(&self.key);
        self.key.copy_from_slice(&block[..8]);
    }

    /// Uses RDRAND from now on, if the CPU has it.
    pub fn use_hardware(&mut self, features: Features) {
        self.hardware = features.rdrand;
        let words = core::array::from_fn(|_| self.hardware_word());
        self.absorb(&words);
    }

    fn hardware_word(&self) -> u64 {
        if self.hardware { cpu::hardware_random().unwrap_or_default() } else { 0 }
    }

    fn reseed(&mut self, page: ClonePage) {
        self.generation = page.generation_counter();
        let [a, b, c, d, e, f, g, h] = page.take_entropy();
        self.absorb(&[a, b, c, d]);
        self.absorb(&[e, f, g, h]);
        let words = [self.hardware_word(), self.hardware_word(), cpu::time_stamp(), page.number()];
        self.absorb(&words);
    }
}

/// The ChaCha20 block function (RFC 8439, section 2.3) with counter and nonce 0: each key is used once.
fn chacha20_block(key: &[u32; 8]) -> [u32; 16] {
    let mut initial = [0; 16];
    initial[..4].copy_from_slice(&[0x6170_7865, 0x3320_646E, 0x7962_2D32, 0x6B20_6574]);
    initial[4..12].copy_from_slice(key);
    let mut state = initial;
    for _ in 0..10 {
        for [a, b, c, d] in [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]] {
            quarter_round(&mut state, a, b, c, d);
        }
        for [a, b, c, d] in [[0, 5, 10, 15], [1, 6, 11, 12], [2, 7, 8, 13], [3, 4, 9, 14]] {
            quarter_round(&mut state, a, b, c, d);
        }
    }
    for (word, start) in state.iter_mut().zip(initial) {
        *word = word.wrapping_add(start);
    }
    state
}

fn quarter_round(state: &mut [u32; 16], a: usize, b: usize, c: usize, d: usize) {
    for (x, y, z, bits) in [(a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)] {
        state[x] = state[x].wrapping_add(state[y]);
        state[z] = (state[z] ^ state[x]).rotate_left(bits);
    }
}
