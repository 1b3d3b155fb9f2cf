//! Measuring several things so that they can be compared: round by round, each once per round, in an order that is
//! shuffled anew for every round. A change of the host's load then meets all of them alike.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::report::{Params, Row};
use crate::shuffle::Shuffle;

/// Rounds that are run and thrown away, to fill caches and pools.
const WARM_UP_ROUNDS: u32 = 2;
/// Time between two lines of progress.
const PROGRESS_EVERY: Duration = Duration::from_secs(5);

/// One value of one sample: several can come from one act, such as a fork's pause and its first answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Measure {
    /// What it is: the row's name.
    pub(crate) name: &'static str,
    /// Its value.
    pub(crate) value: f64,
    /// Its unit.
    pub(crate) unit: &'static str,
}

impl Measure {
    /// A time in microseconds.
    pub(crate) fn us(name: &'static str, time: Duration) -> Self {
        Self { name, value: time.as_secs_f64() * 1e6, unit: "us" }
    }

    /// A time in milliseconds.
    pub(crate) fn ms(name: &'static str, time: Duration) -> Self {
        Self { name, value: time.as_secs_f64() * 1e3, unit: "ms" }
    }
}

/// Takes one sample.
type Sampler<'a> = Box<dyn FnMut() -> Result<Vec<Measure>> + 'a>;

struct Variant<'a> {
    params: Params,
    every: u32,
    sample: Sampler<'a>,
    /// Values by the measure's name, in the order in which the names first came.
    seen: Vec<(Measure, Vec<f64>)>,
}

/// What is to be compared.
#[derive(Default)]
pub(crate) struct Interleave<'a> {
    variants: Vec<Variant<'a>>,
}

impl<'a> Interleave<'a> {
    /// Nothing yet.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Adds a variant: a closure that does the thing once and returns what it measured. Every call must return the
    /// same names.
    pub(crate) fn add(&mut self, params: Params, sample: impl FnMut() -> Result<Vec<Measure>> + 'a) -> &mut Self {
        self.add_rare(params, 1, sample)
    }

    /// Adds a variant that takes so long that it is measured in every `every`-th round only (1: in all).
    pub(crate) fn add_rare(
        &mut self,
        params: Params,
        every: u32,
        sample: impl FnMut() -> Result<Vec<Measure>> + 'a,
    ) -> &mut Self {
        self.variants.push(Variant { params, every: every.max(1), sample: Box::new(sample), seen: Vec::new() });
        self
    }

    /// Runs `rounds` rounds (and those of the warm-up, in which everything is measured) and returns a row for each variant's measures, in the order in which they were added.
    ///
    /// # Errors
    /// The first sample that failed, or returned other measures than before: a benchmark never drops one.
    pub(crate) fn run(mut self, rounds: u32, seed: u64) -> Result<Vec<Row>> {
        let mut shuffle = Shuffle::new(seed);
        let mut told = Instant::now();
        for round in 0..rounds + WARM_UP_ROUNDS {
            for at in shuffle.order(self.variants.len()) {
                let variant = &mut self.variants[at];
                if round.checked_sub(WARM_UP_ROUNDS).is_some_and(|counted| counted % variant.every != 0) {
                    continue;
                }
                let sample = (variant.sample)().with_context(|| format!("Round {round} with {:?}", variant.params))?;
                if round >= WARM_UP_ROUNDS {
                    variant.keep(sample).with_context(|| format!("Round {round} with {:?}", variant.params))?;
                }
            }
            if told.elapsed() >= PROGRESS_EVERY {
                eprintln!("  {round} of {} rounds", rounds + WARM_UP_ROUNDS);
                told = Instant::now();
            }
        }
        Ok(self.variants.into_iter().flat_map(Variant::rows).collect())
    }
}

impl Variant<'_> {
    fn keep(&mut self, sample: Vec<Measure>) -> Result<()> {
        if self.seen.is_empty() {
            self.seen = sample.iter().map(|measure| (measure.clone(), Vec::new())).collect();
        }
        ensure!(self.seen.len() == sample.len(), "{} values, not {}", sample.len(), self.seen.len());
        for ((first, values), measure) in self.seen.iter_mut().zip(sample) {
            ensure!(
                (first.name, first.unit) == (measure.name, measure.unit) && measure.value.is_finite(),
                "{measure:?} where {} in {} was expected",
                first.name,
                first.unit
            );
            values.push(measure.value);
        }
        Ok(())
    }

    fn rows(self) -> Vec<Row> {
        let Self { params, seen, .. } = self;
        let row = |(measure, values): (Measure, Vec<f64>)| Row::of(measure.name, params.clone(), values, measure.unit);
        seen.into_iter().filter_map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::report::params;

    fn value(name: &'static str, value: f64) -> Measure {
        Measure { name, value, unit: "us" }
    }

    #[test]
    fn every_round_has_each_variant_once_in_changing_order() {
        let calls = RefCell::new(Vec::new());
        let mut interleave = Interleave::new();
        for variant in 0..4 {
            let calls = &calls;
            interleave.add(params([("variant", variant.into())]), move || {
                calls.borrow_mut().push(variant);
                Ok(vec![value("a", f64::from(variant)), value("b", calls.borrow().len() as f64)])
            });
        }
        let rows = interleave.run(10, 3).unwrap();
        let calls = calls.borrow();
        let rounds: Vec<_> = calls.chunks(4).collect();
        assert_eq!(rounds.len(), 10 + WARM_UP_ROUNDS as usize);
        for round in &rounds {
            let mut sorted = round.to_vec();
            sorted.sort_unstable();
            assert_eq!(sorted, [0, 1, 2, 3]);
        }
        assert!(rounds.iter().any(|round| *round != rounds[0]));
        assert_eq!(rows.len(), 8);
        assert_eq!((rows[2].name.as_str(), rows[2].p50, rows[2].n), ("a", 1.0, 10));
        assert_eq!(rows[2].params, params([("variant", 1.into())]));
    }

    #[test]
    fn warm_up_is_not_counted() {
        let mut calls = 0.0;
        let mut interleave = Interleave::new();
        interleave.add(Params::new(), || {
            calls += 1.0;
            Ok(vec![value("a", calls)])
        });
        let rows = interleave.run(3, 1).unwrap();
        assert_eq!((rows[0].n, rows[0].min, rows[0].p50, rows[0].p99), (3, 3.0, 4.0, 5.0));
    }

    #[test]
    fn rare_variants_are_measured_in_some_rounds() {
        for (every, rounds, expected) in [(1, 5, 5), (4, 5, 2), (4, 1, 1), (0, 3, 3)] {
            let mut interleave = Interleave::new();
            interleave.add_rare(Params::new(), every, || Ok(vec![value("a", 1.0)]));
            assert_eq!(interleave.run(rounds, 1).unwrap()[0].n, expected, "{every}, {rounds}");
        }
    }

    #[test]
    fn failures_and_changing_measures_are_errors() {
        let run = |samples: Vec<Result<Vec<Measure>>>| {
            let mut samples = samples.into_iter();
            let mut interleave = Interleave::new();
            interleave.add(params([("mib", 4.into())]), move || samples.next().unwrap_or(Ok(vec![value("a", 1.0)])));
            interleave.run(3, 1)
        };
        let ok = || Ok(vec![value("a", 1.0)]);
        assert!(run(vec![]).is_ok());
        let error = run(vec![ok(), Err(anyhow::anyhow!("no fork"))]).unwrap_err();
        assert!(format!("{error:#}").contains("mib") && format!("{error:#}").contains("no fork"), "{error:#}");
        assert!(run(vec![ok(), ok(), ok(), Ok(vec![])]).is_err());
        assert!(run(vec![ok(), ok(), ok(), Ok(vec![value("b", 1.0)])]).is_err());
        assert!(run(vec![ok(), ok(), Ok(vec![value("a", f64::NAN)])]).is_err());
    }
}
