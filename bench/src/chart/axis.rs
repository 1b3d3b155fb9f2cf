//! An axis: where a value is drawn, and which values are marked.

use std::ops::Range;

/// Ratio of the largest to the smallest value from which an axis is logarithmic when nobody says.
const LOGARITHMIC_RATIO: f64 = 100.0;
/// Most marks on an axis.
const MAX_TICKS: usize = 8;

/// An axis over a range of values, drawn over a range of pixels (which may run backwards).
#[derive(Debug)]
pub(super) struct Axis {
    low: f64,
    high: f64,
    logarithmic: bool,
    pixels: Range<f64>,
}

impl Axis {
    /// An axis that has room for `values`. A linear one begins at 0, a logarithmic one at a power of ten; what is not
    /// positive cannot be on that and is drawn at its beginning.
    pub(super) fn over(values: impl Iterator<Item = f64>, logarithmic: Option<bool>, pixels: Range<f64>) -> Self {
        let positive: Vec<f64> = values.filter(|value| value.is_finite() && *value > 0.0).collect();
        let high = positive.iter().copied().reduce(f64::max).unwrap_or(1.0);
        let low = positive.iter().copied().reduce(f64::min).unwrap_or(1.0);
        if logarithmic.unwrap_or(high / low > LOGARITHMIC_RATIO) {
            let low = 10f64.powf(low.log10().floor());
            let high = 10f64.powf(high.log10().ceil()).max(low * 10.0);
            return Self { low, high, logarithmic: true, pixels };
        }
        let step = step(high);
        Self { low: 0.0, high: (high / step).ceil() * step, logarithmic: false, pixels }
    }

    /// Where `value` is drawn.
    pub(super) fn place(&self, value: f64) -> f64 {
        let value = value.clamp(self.low, self.high);
        let share = if self.logarithmic {
            (value / self.low).log10() / (self.high / self.low).log10()
        } else {
            value / self.high
        };
        self.pixels.start + share * (self.pixels.end - self.pixels.start)
    }

    /// The marked values with their labels.
    pub(super) fn ticks(&self) -> Vec<(f64, String)> {
        let mut ticks = Vec::new();
        let step = step(self.high);
        let decades = (self.high / self.low).log10().round().max(1.0) as usize;
        let stride = if self.logarithmic { decades.div_ceil(MAX_TICKS) } else { 1 };
        let count = if self.logarithmic { decades / stride } else { (self.high / step).round() as usize };
        for index in 0..=count {
            let value = if self.logarithmic {
                self.low * 10f64.powi(i32::try_from(index * stride).unwrap_or(0))
            } else {
                index as f64 * step
            };
            ticks.push((value, label(value)));
        }
        ticks
    }
}

/// A step of 1, 2 or 5 times a power of ten that divides `high` into at most [`MAX_TICKS`] parts.
fn step(high: f64) -> f64 {
    let power = 10f64.powf(high.log10().floor() - 1.0);
    let fits = |step: &f64| (high / step).ceil() <= MAX_TICKS as f64;
    [1.0, 2.0, 5.0, 10.0, 20.0, 50.0].map(|factor| factor * power).into_iter().find(fits).unwrap_or(high)
}

/// A mark's label: up to three digits behind the point, none needlessly.
fn label(value: f64) -> String {
    if value.abs() >= 0.001 || value == 0.0 {
        let text = format!("{value:.3}");
        return text.trim_end_matches('0').trim_end_matches('.').to_owned();
    }
    format!("{value:e}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linear_axes_begin_at_zero() {
        let axis = Axis::over([3.0, 7.0].into_iter(), None, 100.0..200.0);
        assert_eq!((axis.place(0.0), axis.place(7.0)), (100.0, 200.0));
        let labels: Vec<_> = axis.ticks().into_iter().map(|(_, label)| label).collect();
        assert_eq!(labels, ["0", "1", "2", "3", "4", "5", "6", "7"]);
    }

    #[test]
    fn wide_ranges_are_logarithmic() {
        let axis = Axis::over([0.5, 5000.0].into_iter(), None, 0.0..500.0);
        assert!((axis.place(0.1), axis.place(10_000.0)) == (0.0, 500.0));
        assert!((axis.place(1.0) - 100.0).abs() < 1e-9);
        assert_eq!(axis.place(-1.0), 0.0);
        let labels: Vec<_> = axis.ticks().into_iter().map(|(_, label)| label).collect();
        assert_eq!(labels, ["0.1", "1", "10", "100", "1000", "10000"]);
    }

    #[test]
    fn axes_may_run_backwards_and_be_empty() {
        let axis = Axis::over([10.0].into_iter(), Some(false), 300.0..60.0);
        assert_eq!((axis.place(0.0), axis.place(10.0)), (300.0, 60.0));
        for logarithmic in [false, true] {
            let axis = Axis::over(std::iter::empty(), Some(logarithmic), 0.0..1.0);
            assert!(axis.place(0.0).is_finite() && !axis.ticks().is_empty());
        }
    }

    #[test]
    fn marks_are_few() {
        for high in [0.000_3, 0.7, 1.0, 9.9, 64.0, 12_345.0, 1e9] {
            let ticks = Axis::over([high].into_iter(), Some(false), 0.0..1.0).ticks().len();
            assert!((2..=MAX_TICKS + 1).contains(&ticks), "{high}: {ticks}");
            let wide = Axis::over([1e-9, high].into_iter(), Some(true), 0.0..1.0).ticks().len();
            assert!((2..=MAX_TICKS + 2).contains(&wide), "{high}: {wide}");
        }
    }
}
