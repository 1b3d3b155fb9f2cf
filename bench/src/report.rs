//! What a benchmark says: one object for every benchmark of the project, as JSON and as a table.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::host::Host;
use crate::statistics::percentile;

/// What a row's measurement was made with: slot size, number of clones, ...
pub(crate) type Params = BTreeMap<String, Value>;

/// Makes params from pairs: `params([("mib", 128.into())])`.
pub(crate) fn params<const N: usize>(pairs: [(&str, Value); N]) -> Params {
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// A benchmark's answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report {
    /// The benchmark's name.
    pub(crate) bench: String,
    /// The commit that was built; `+` behind it when files differed from it.
    pub(crate) commit: String,
    /// Where it ran.
    pub(crate) host: Host,
    /// What ran in the machines, where there were any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) guest: Option<String>,
    /// The measurements.
    pub(crate) rows: Vec<Row>,
}

/// One measurement, repeated `n` times.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    /// What was measured.
    pub(crate) name: String,
    /// With what.
    pub(crate) params: Params,
    /// Number of samples.
    pub(crate) n: usize,
    /// Smallest sample.
    pub(crate) min: f64,
    /// Median, by nearest rank (see [`crate::statistics::percentile`]).
    pub(crate) p50: f64,
    /// 99th percentile, by nearest rank: the largest sample where there are fewer than 100.
    pub(crate) p99: f64,
    /// Unit of the three: `us`, `ms`, `KiB`, ...
    pub(crate) unit: String,
}

impl Row {
    /// What `values` amount to; `None` without any.
    pub(crate) fn of(name: &str, params: Params, mut values: Vec<f64>, unit: &str) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        Some(Self {
            name: name.to_owned(),
            params,
            n: values.len(),
            min: *values.first()?,
            p50: percentile(&values, 50.0)?,
            p99: percentile(&values, 99.0)?,
            unit: unit.to_owned(),
        })
    }
}

impl Report {
    /// A report of this commit on this host.
    pub(crate) fn new(bench: &str, rows: Vec<Row>) -> Self {
        Self { bench: bench.to_owned(), commit: crate::host::commit(), host: Host::detect(), guest: None, rows }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Other programs read these names.
    #[test]
    fn the_json_has_the_documented_names() {
        let row = Row {
            name: "fork".to_owned(),
            params: params([("mib", 128.into())]),
            n: 3,
            min: 1.0,
            p50: 2.0,
            p99: 3.5,
            unit: "ms".to_owned(),
        };
        let report = Report::new("fork", vec![row]);
        let json: Value = serde_json::to_value(&report).unwrap();
        let names: Vec<_> = json.as_object().unwrap().keys().cloned().collect();
        assert_eq!(names, ["bench", "commit", "host", "rows"]);
        let row = &json["rows"][0];
        let mut names: Vec<_> = row.as_object().unwrap().keys().cloned().collect();
        names.sort();
        assert_eq!(names, ["min", "n", "name", "p50", "p99", "params", "unit"]);
        assert_eq!((&row["params"]["mib"], &row["p99"]), (&Value::from(128), &Value::from(3.5)));
        assert_eq!(serde_json::from_value::<Report>(json).unwrap(), report);
    }
}
