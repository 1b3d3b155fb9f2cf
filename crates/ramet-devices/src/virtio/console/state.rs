//! State of the console.

use serde::{Deserialize, Serialize};

pub(crate) const KIND: &str = "virtio-console";
pub(crate) const VERSION: u16 = 1;

const COLUMNS: u16 = 80;
const ROWS: u16 = 25;

/// What the guest can see, besides the transport.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConsoleRegisters {
    /// Width of the terminal.
    pub(super) columns: u16,
    /// Height of the terminal.
    pub(super) rows: u16,
    /// How much of the buffer at the head of transmitq the host has taken.
    pub(super) transmitted_bytes: u32,
}

impl ConsoleRegisters {
    pub(super) fn initial() -> Self {
        Self { columns: COLUMNS, rows: ROWS, transmitted_bytes: 0 }
    }
}
