//! The host's time-stamp counter as a clock: guests and machines' processes stamp with it, and can call nobody.
//!
//! Hosts whose counter is not invariant are deliberately not provided for: KVM guests need one that is.

use std::time::Instant;

/// The counter's pace, known better the longer this exists.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ticks {
    counter: u64,
    time: Instant,
}

impl Ticks {
    /// Starts to compare the counter with the clock. After a tenth of a second they are known to agree within some
    /// millionths.
    pub(crate) fn new() -> Self {
        Self { counter: ramet_kvm::read_tsc(), time: Instant::now() }
    }

    /// The counter now.
    pub(crate) fn now() -> u64 {
        ramet_kvm::read_tsc()
    }

    /// Microseconds between two readings; negative if `to` was before `from`.
    pub(crate) fn us(self, from: u64, to: u64) -> f64 {
        let ticks = Self::now().wrapping_sub(self.counter).max(1);
        let us_per_tick = self.time.elapsed().as_secs_f64() * 1e6 / ticks as f64;
        to.wrapping_sub(from).cast_signed() as f64 * us_per_tick
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn ticks_are_microseconds() {
        let ticks = Ticks::new();
        let from = Ticks::now();
        std::thread::sleep(Duration::from_millis(20));
        let to = Ticks::now();
        // No sleep is shorter than told; how much longer this host makes it is its business.
        assert!(ticks.us(from, to) > 19_990.0, "{}", ticks.us(from, to));
        assert!(ticks.us(to, from) < -19_990.0);
    }
}
