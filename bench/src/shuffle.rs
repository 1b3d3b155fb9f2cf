//! A shuffled order that a seed repeats.

/// SplitMix64: small, and good enough to choose an order.
#[derive(Debug)]
pub(crate) struct Shuffle(u64);

impl Shuffle {
    /// From a seed.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// The numbers below `n` in the next order (Fisher-Yates).
    pub(crate) fn order(&mut self, n: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..n).collect();
        for last in (1..n).rev() {
            // The remainder's bias is about n / 2^64.
            let other = (self.next() % (last as u64 + 1)) as usize;
            order.swap(last, other);
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_permutations_that_differ_and_repeat() {
        let (mut a, mut b) = (Shuffle::new(7), Shuffle::new(7));
        let (first, second) = (a.order(8), a.order(8));
        assert_eq!(b.order(8), first);
        assert_ne!(first, second);
        let mut sorted = first;
        sorted.sort_unstable();
        assert_eq!(sorted, (0..8).collect::<Vec<_>>());
        assert_eq!(a.order(0), Vec::<usize>::new());
    }
}
