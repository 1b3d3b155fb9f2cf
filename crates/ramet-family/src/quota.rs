//! How many machines a family may have, and how fast guests may make them.
//!
//! Pure arithmetic over a time that the caller passes in. A fork from outside is bounded by the number of machines
//! alone; one that a guest calls also needs a grant, and tokens: `per_second` of them arrive every second and at most
//! `burst` are kept (Nephele, section 5.1, bounds clones per domain; the rate is ours, against fork bombs).

use serde::{Deserialize, Serialize};

/// What guests of a family may do by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestForks {
    /// Children per second, on average; 1 to 1,000,000.
    pub per_second: u32,
    /// Children at once after a quiet time; 1 to 1,000,000.
    pub burst: u32,
}

/// Limits of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Machines alive at once, the founder included.
    pub machines: u32,
    /// Forks that guests call; `None`: not granted.
    pub guest_forks: Option<GuestForks>,
}

impl Default for Limits {
    fn default() -> Self {
        Self { machines: 10_000, guest_forks: None }
    }
}

/// Why a fork is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuotaError {
    /// The guest may not fork.
    #[error("Fork from inside is not granted to this family: start it with --guest-forks")]
    NotGranted,
    /// Too many machines.
    #[error("Family has {alive} machines and may have {maximum}: {wanted} more were asked for")]
    Machines {
        /// Alive now.
        alive: u32,
        /// Asked for.
        wanted: u32,
        /// The limit.
        maximum: u32,
    },
    /// Too fast.
    #[error("Family forks faster than {per_second} children a second")]
    Rate {
        /// The limit.
        per_second: u32,
    },
}

const NS_PER_SECOND: u128 = 1_000_000_000;

/// Keeps the limits.
#[derive(Clone, Debug)]
pub struct Quota {
    limits: Limits,
    /// Tokens, in billionths of a child.
    tokens: u128,
    refilled_at_ns: u64,
}

impl Quota {
    /// A full bucket at `now_ns` of any monotonic clock.
    pub fn new(limits: Limits, now_ns: u64) -> Self {
        let burst = limits.guest_forks.map_or(0, |forks| forks.burst);
        Self { limits, tokens: u128::from(burst) * NS_PER_SECOND, refilled_at_ns: now_ns }
    }

    /// The limits that are kept.
    pub const fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Whether a fork from outside may make `wanted` machines beside `alive`.
    ///
    /// # Errors
    /// [`QuotaError::Machines`].
    pub fn admit(&self, alive: u32, wanted: u32) -> Result<(), QuotaError> {
        let maximum = self.limits.machines;
        match alive.checked_add(wanted) {
            Some(sum) if sum <= maximum => Ok(()),
            _ => Err(QuotaError::Machines { alive, wanted, maximum }),
        }
    }

    /// Whether a guest may make `wanted` machines beside `alive`; takes the tokens if so.
    ///
    /// # Errors
    /// [`QuotaError`] says which limit; nothing is taken.
    pub fn admit_guest(&mut self, alive: u32, wanted: u32, now_ns: u64) -> Result<(), QuotaError> {
        let Some(forks) = self.limits.guest_forks else { return Err(QuotaError::NotGranted) };
        self.admit(alive, wanted)?;
        let passed = u128::from(now_ns.saturating_sub(self.refilled_at_ns));
        let full = u128::from(forks.burst) * NS_PER_SECOND;
        self.tokens = full.min(self.tokens + passed * u128::from(forks.per_second));
        self.refilled_at_ns = self.refilled_at_ns.max(now_ns);
        match self.tokens.checked_sub(u128::from(wanted) * NS_PER_SECOND) {
            Some(rest) => {
                self.tokens = rest;
                Ok(())
            }
            None => Err(QuotaError::Rate { per_second: forks.per_second }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn limits(machines: u32, per_second: u32, burst: u32) -> Limits {
        Limits { machines, guest_forks: Some(GuestForks { per_second, burst }) }
    }

    #[test]
    fn nothing_is_granted_by_default() {
        let mut quota = Quota::new(Limits::default(), 0);
        assert_eq!(quota.admit_guest(1, 1, 0), Err(QuotaError::NotGranted));
        assert_eq!(quota.admit(1, 1), Ok(()));
    }

    #[test]
    fn the_number_of_machines_bounds_both_kinds() {
        let mut quota = Quota::new(limits(10, 100, 100), 0);
        assert_eq!(quota.admit(9, 1), Ok(()));
        assert!(matches!(quota.admit(9, 2), Err(QuotaError::Machines { alive: 9, wanted: 2, maximum: 10 })));
        assert!(matches!(quota.admit(1, u32::MAX), Err(QuotaError::Machines { .. })));
        assert!(matches!(quota.admit_guest(10, 1, 0), Err(QuotaError::Machines { .. })));
    }

    #[test]
    fn tokens_come_back_with_time() {
        let mut quota = Quota::new(limits(1000, 10, 5), 0);
        assert_eq!(quota.admit_guest(1, 5, 0), Ok(()));
        assert_eq!(quota.admit_guest(6, 1, 0), Err(QuotaError::Rate { per_second: 10 }));
        assert_eq!(quota.admit_guest(6, 1, 100_000_000), Ok(()));
        assert!(quota.admit_guest(7, 1, 150_000_000).is_err());
    }

    proptest! {
        #[test]
        fn never_more_than_burst_plus_rate(
            steps in prop::collection::vec((0u64..50_000_000, 1u32..20), 1..200),
            per_second in 1u32..500,
            burst in 1u32..50,
        ) {
            let mut quota = Quota::new(limits(u32::MAX, per_second, burst), 0);
            let (mut now, mut made) = (0u64, 0u64);
            for (passed, wanted) in steps {
                now += passed;
                if quota.admit_guest(0, wanted, now).is_ok() {
                    made += u64::from(wanted);
                }
                let most = u64::from(burst) + now * u64::from(per_second) / 1_000_000_000 + 1;
                prop_assert!(made <= most, "{made} > {most}");
            }
        }
    }
}
