//! Percentiles.

/// The `p`-th percentile (0 < p <= 100) of `sorted` by nearest rank: the smallest sample that at least p % of the
/// samples do not exceed, so always a value that was measured. With fewer than 100 samples the 99th is the largest.
/// None without samples.
pub(crate) fn percentile(sorted: &[f64], p: f64) -> Option<f64> {
    debug_assert!(sorted.is_sorted(), "samples must be sorted");
    let rank = (p / 100.0 * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.max(1) - 1).or(sorted.last()).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_samples() {
        let samples = [15.0, 20.0, 35.0, 40.0, 50.0];
        let expected =
            [(5.0, 15.0), (20.0, 15.0), (30.0, 20.0), (40.0, 20.0), (50.0, 35.0), (99.0, 50.0), (100.0, 50.0)];
        for (p, value) in expected {
            assert_eq!(percentile(&samples, p), Some(value), "{p}");
        }
        assert_eq!(percentile(&[7.0], 50.0), Some(7.0));
        assert_eq!(percentile(&[], 50.0), None);
    }

    #[test]
    fn the_99th_of_200_leaves_two_above() {
        let samples: Vec<f64> = (1..=200).map(f64::from).collect();
        assert_eq!(percentile(&samples, 99.0), Some(198.0));
    }
}
