//! How many tests passed and failed, read from what the test programs print.

/// Counts of tests.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Totals {
    /// Passed.
    pub(super) passed: u64,
    /// Failed.
    pub(super) failed: u64,
}

impl Totals {
    /// Adds what one line of a test program's output says: `test result: ok. 3 passed; 0 failed; ...`.
    pub(super) fn read(&mut self, line: &str) {
        let Some((_, counts)) = line.trim().strip_prefix("test result: ").and_then(|rest| rest.split_once(". ")) else {
            return;
        };
        for count in counts.split(';') {
            if let Some((number, what)) = count.trim().split_once(' ') {
                match (number.parse::<u64>(), what) {
                    (Ok(n), "passed") => self.passed += n,
                    (Ok(n), "failed") => self.failed += n,
                    _ => {}
                }
            }
        }
    }

    /// Adds a check that is no test program's.
    pub(super) fn count(&mut self, passed: bool) {
        if passed { self.passed += 1 } else { self.failed += 1 }
    }

    /// Closes a stage: one without tests counts as one check, and a failure is always seen in the counts.
    pub(super) fn close(&mut self, failed: bool) {
        if failed && self.failed == 0 {
            self.failed = 1;
        } else if !failed && self.passed == 0 {
            self.passed = 1;
        }
    }

    /// The sum.
    pub(super) fn and(self, other: Self) -> Self {
        Self { passed: self.passed + other.passed, failed: self.failed + other.failed }
    }
}

impl std::fmt::Display for Totals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_summed() {
        let mut totals = Totals::default();
        for line in [
            "running 3 tests",
            "test a ... ok",
            "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s",
            "  test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 1 filtered out; finished in 0.10s\r",
            "printed: test result: ok. 9 passed",
            "test result: nonsense",
        ] {
            totals.read(line);
        }
        assert_eq!(totals.to_string(), "4 passed, 2 failed");
    }

    #[test]
    fn a_stage_without_tests_counts_as_one() {
        let closed = |mut totals: Totals, failed| {
            totals.close(failed);
            (totals.passed, totals.failed)
        };
        assert_eq!(closed(Totals::default(), false), (1, 0));
        assert_eq!(closed(Totals::default(), true), (0, 1));
        assert_eq!(closed(Totals { passed: 5, failed: 0 }, true), (5, 1));
        assert_eq!(closed(Totals { passed: 5, failed: 2 }, true), (5, 2));
    }
}
