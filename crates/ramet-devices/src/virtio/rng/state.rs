//! State of the entropy source: none of its own.

use serde::{Deserialize, Serialize};

pub(crate) const KIND: &str = "virtio-rng";
pub(crate) const VERSION: u16 = 1;

/// Nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RngRegisters {}
