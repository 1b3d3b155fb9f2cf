//! The command line, and what of it a scenario sees.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Parser;

/// Samples of each row with `--quick`.
const QUICK_SAMPLES: u32 = 2;

/// Measures what Ramet and its host cost.
#[derive(Debug, Parser)]
#[command(name = "bench")]
pub(crate) struct Arguments {
    /// The benchmark; without it, the list of them.
    pub(crate) name: Option<String>,
    /// Only list the benchmarks.
    #[arg(long, conflicts_with = "name")]
    list: bool,
    /// Write the report to this file as JSON.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Draw the report's chart in this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Samples of each row, instead of the benchmark's own choice.
    #[arg(short, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    n: Option<u32>,
    /// Seed of the order in which what is compared is measured.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only see that it works: a few small samples, in seconds. The numbers mean little.
    #[arg(long)]
    quick: bool,
    /// A setting of the benchmark; `--list` shows which it has.
    #[arg(long = "set", value_name = "NAME=VALUE")]
    settings: Vec<String>,
}

/// What a scenario is run with.
#[derive(Debug, Clone, Default)]
pub(crate) struct Options {
    samples: Option<u32>,
    /// Seed of the order of measurements.
    pub(crate) seed: u64,
    /// Small samples, and few.
    pub(crate) quick: bool,
    settings: BTreeMap<String, String>,
}

impl Arguments {
    /// The scenario's options; `known` are the settings that it has.
    ///
    /// # Errors
    /// A setting that the scenario does not have, or without a value.
    pub(crate) fn options(&self, known: &[&str]) -> Result<Options> {
        let mut settings = BTreeMap::new();
        for setting in &self.settings {
            let Some((name, value)) = setting.split_once('=') else { bail!("--set {setting}: say NAME=VALUE") };
            if !known.contains(&name) {
                bail!("--set {setting}: this benchmark's settings are: {}", known.join(", "));
            }
            settings.insert(name.to_owned(), value.to_owned());
        }
        Ok(Options { samples: self.n, seed: self.seed, quick: self.quick, settings })
    }
}

impl Options {
    /// Samples of each row: as told, else `default`, or a few if it shall be quick.
    pub(crate) fn samples(&self, default: u32) -> u32 {
        self.samples.unwrap_or(if self.quick { default.min(QUICK_SAMPLES) } else { default })
    }

    /// A setting as it was given.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.settings.get(name).map(String::as_str)
    }

    /// A setting's values, separated by commas; `default` where it is not set.
    ///
    /// # Errors
    /// A value that is not one.
    pub(crate) fn values<T: std::str::FromStr + Clone>(&self, name: &str, default: &[T]) -> Result<Vec<T>> {
        let Some(text) = self.settings.get(name) else { return Ok(default.to_vec()) };
        let value =
            |part: &str| part.parse().map_err(|_| anyhow::anyhow!("--set {name}={text}: {part} is no value for it"));
        text.split(',').map(value).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(arguments: &[&str]) -> Result<Options> {
        let all = ["bench", "floor"].iter().chain(arguments);
        Arguments::try_parse_from(all)?.options(&["mib"])
    }

    #[test]
    fn settings_are_checked() {
        let set = options(&["--set", "mib=1,2", "-n", "7"]).unwrap();
        assert_eq!(set.values("mib", &[9u64]).unwrap(), [1, 2]);
        assert_eq!(set.samples(3), 7);
        let unset = options(&[]).unwrap();
        assert_eq!((unset.values("mib", &[9u64]).unwrap(), unset.samples(3), unset.seed), (vec![9], 3, 1));
        assert!(options(&["--set", "mib=x"]).unwrap().values("mib", &[9u64]).is_err());
        let quick = options(&["--quick"]).unwrap();
        assert!(quick.quick && quick.samples(100) == QUICK_SAMPLES && quick.samples(1) == 1);
        assert_eq!(options(&["--quick", "-n", "7"]).unwrap().samples(3), 7);
        assert_eq!((set.text("mib"), unset.text("mib")), (Some("1,2"), None));
        for bad in [&["--set", "other=1"][..], &["--set", "mib"], &["-n", "0"]] {
            assert!(options(bad).is_err(), "{bad:?}");
        }
    }
}
