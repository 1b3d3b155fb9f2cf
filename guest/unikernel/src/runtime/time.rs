//! Time: kvm-clock on vCPU 0.
//!
//! KVM keeps a small structure up to date from which the time-stamp counter is turned into nanoseconds; it follows
//! the machine through forks, pauses and moves, which the raw counter does not.

use core::sync::atomic::{Ordering, fence};

use super::clone_page::ClonePage;
use super::cpu;
use crate::ring0;

/// The clock, which ring 0 started when vCPU 0 came up.
pub struct Clock(());

impl Clock {
    /// For vCPU 0 only, as it is that vCPU's clock.
    pub fn of_vcpu0() -> Self {
        Self(())
    }

    /// Nanoseconds that do not go backwards; zero is about the start of the founder.
    pub fn monotonic_ns(&self) -> u64 {
        let words = ring0::clock();
        loop {
            // Linux, pvclock-abi.h: u32 version, u32 pad, u64 tsc_timestamp, u64 system_time, u32 tsc_to_system_mul,
            // s8 tsc_shift, u8 flags. The version is odd while KVM writes.
            let version = words[0].load(Ordering::Acquire) as u32;
            let stamp = words[1].load(Ordering::Relaxed);
            let base = words[2].load(Ordering::Relaxed);
            let scale = words[3].load(Ordering::Relaxed);
            let now = cpu::time_stamp();
            fence(Ordering::Acquire);
            if version & 1 == 0 && words[0].load(Ordering::Relaxed) as u32 == version {
                return base.wrapping_add(scaled(now.saturating_sub(stamp), scale as u32, (scale >> 32) as i8));
            }
            core::hint::spin_loop();
        }
    }
}

/// Nanoseconds since 1970, UTC, at a reading of the clock.
pub fn wall_ns(page: ClonePage, monotonic_ns: u64) -> u64 {
    monotonic_ns.wrapping_add_signed(page.wall_offset_ns())
}

fn scaled(ticks: u64, multiplier: u32, shift: i8) -> u64 {
    let amount = u32::from(shift.unsigned_abs());
    let shifted = if shift >= 0 { ticks.checked_shl(amount) } else { ticks.checked_shr(amount) }.unwrap_or_default();
    ((u128::from(shifted) * u128::from(multiplier)) >> 32) as u64
}
