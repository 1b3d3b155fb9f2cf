//! Memory, and percentiles.

use anyhow::Result;
use ramet_family::{Family, Phase};
use ramet_memory::account::memory_use;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use std::time::Instant;

/// Some samples of one quantity.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Summary {
    /// How many.
    pub(crate) n: usize,
    /// Median.
    pub(crate) p50: f64,
    /// 99th percentile.
    pub(crate) p99: f64,
}

impl Summary {
    /// Nearest-rank percentiles; zeros without samples.
    pub(crate) fn of(mut samples: Vec<f64>) -> Self {
        samples.sort_by(f64::total_cmp);
        let rank = |percent: usize| {
            let rank = (samples.len() * percent).div_ceil(100).saturating_sub(1);
            samples.get(rank).copied().unwrap_or(0.0)
        };
        Self { n: samples.len(), p50: rank(50), p99: rank(99) }
    }
}

/// How the parent came up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Boot {
    /// From the start of the family to the parent's first answer.
    pub(crate) ms: f64,
    /// CLOCK_MONOTONIC at that answer, for who started this process and wants to count from there.
    pub(crate) answered_monotonic_ns: u64,
}

impl Boot {
    /// The parent has just answered.
    pub(crate) fn answered(began: Instant) -> Self {
        let now = clock_gettime(ClockId::Monotonic);
        let ns = u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0);
        Self { ms: began.elapsed().as_secs_f64() * 1e3, answered_monotonic_ns: ns }
    }
}

/// What the clones cost.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Memory {
    /// Everything per clone, the kernel's share included.
    pub(crate) all_in_per_clone_kib: u64,
    /// What says so: the family's control group, or MemAvailable where it has none (other programs disturb that).
    pub(crate) measured_by: &'static str,
    /// Proportional set size of a clone's process, on average.
    pub(crate) pss_per_clone_kib: u64,
    /// Pages that only the clone has, on average.
    pub(crate) private_per_clone_kib: u64,
}

/// MemAvailable of /proc/meminfo.
pub(crate) fn available_kib() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}

/// What there was before the clones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Before {
    charged_bytes: Option<u64>,
    available_kib: u64,
}

impl Before {
    pub(crate) fn now(family: &Family) -> Self {
        Self { charged_bytes: family.charged_bytes(), available_kib: available_kib() }
    }
}

pub(crate) fn memory(family: &Family, before: Before) -> Result<Memory> {
    let (all_in, measured_by) = match (before.charged_bytes, family.charged_bytes()) {
        (Some(before), Some(now)) => (now.saturating_sub(before) / 1024, "cgroup"),
        _ => (before.available_kib.saturating_sub(available_kib()), "MemAvailable"),
    };
    let mut clones = 0;
    let (mut pss, mut private) = (0, 0);
    for member in family.members().filter(|member| member.number != 0 && member.phase != Phase::Dead) {
        let Some(pid) = member.pid else { continue };
        let used = memory_use(pid)?;
        pss += used.proportional_kib;
        private += used.private_dirty_kib + used.private_clean_kib;
        clones += 1;
    }
    let each = |sum: u64| sum / clones.max(1);
    Ok(Memory {
        all_in_per_clone_kib: each(all_in),
        measured_by,
        pss_per_clone_kib: each(pss),
        private_per_clone_kib: each(private),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        let summary = Summary::of((1..=100).map(f64::from).rev().collect());
        assert_eq!(summary, Summary { n: 100, p50: 50.0, p99: 99.0 });
        assert_eq!(Summary::of(vec![3.0]), Summary { n: 1, p50: 3.0, p99: 3.0 });
        assert_eq!(Summary::of(vec![]).n, 0);
    }
}
