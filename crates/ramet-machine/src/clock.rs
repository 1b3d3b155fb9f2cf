//! Times, as kvm-clock and the clone page need them.

use ramet_state::{ClockPlan, ClockState};
use rustix::time::{ClockId, clock_gettime};

fn read_ns(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    // Neither clock is negative on a running system.
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// CLOCK_BOOTTIME in nanoseconds: goes on while the host sleeps, as a guest's clock must.
pub(crate) fn boottime_ns() -> u64 {
    read_ns(ClockId::Boottime)
}

/// What kvm-clock shall read at `now_ns` of CLOCK_BOOTTIME.
pub(crate) fn kvm_clock_ns(plan: ClockPlan, saved: &ClockState, now_ns: u64) -> u64 {
    match plan {
        ClockPlan::Begin => 0,
        ClockPlan::Continue => saved.kvm_clock_ns.saturating_add(now_ns.saturating_sub(saved.host_boottime_ns)),
    }
}

/// Wall clock minus kvm-clock, now, where kvm-clock reads `kvm_clock_ns` now.
pub(crate) fn wall_offset_ns(kvm_clock_ns: u64) -> i64 {
    let wall = i128::from(read_ns(ClockId::Realtime)) - i128::from(kvm_clock_ns);
    i64::try_from(wall).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clone_s_clock_goes_on_by_the_time_that_passed() {
        let saved = ClockState { kvm_clock_ns: 1_000, host_boottime_ns: 50_000 };
        assert_eq!(kvm_clock_ns(ClockPlan::Continue, &saved, 50_700), 1_700);
        assert_eq!(kvm_clock_ns(ClockPlan::Begin, &saved, 50_700), 0);
        assert_eq!(kvm_clock_ns(ClockPlan::Continue, &saved, 49_000), 1_000, "never back");
    }
}
